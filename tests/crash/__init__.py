"""The crash suite: real processes that are killed or stopped at every commit point, and an oracle kept outside.

`child` is the process that dies, `life` what it does until then, `script` its model and its tools, `nursery` how a
test starts it, `oracle` what must be true afterwards.
"""
