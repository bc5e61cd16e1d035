"""Whatever a model, a tool or another person wrote, as a terminal may be shown it: nothing in it moves a cursor, or
shows letters in another order than they have."""

import sys

_CONTROL = {code: chr(0x2400 + code) for code in range(0x20)}  # pictures of them
_CONTROL |= dict.fromkeys([*range(0x7F, 0xA0), *range(0xD800, 0xE000)], "\N{REPLACEMENT CHARACTER}")
_CONTROL |= dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], "")  # they turn what follows around
_CONTROL |= {ord("\n"): "\n", ord("\t"): "    ", ord("\r"): "", 0x2028: "\n", 0x2029: "\n"}


def plain(text: str) -> str:
    """Text that moves no cursor: lines are ended by newlines only."""
    return text.translate(_CONTROL)


def one_line(text: str) -> str:
    """The same in a row of a list."""
    return " ".join(plain(text).split())


def shown(text: str) -> str:
    """What goes to standard output: a terminal is guarded, a file or a program gets what was written."""
    return plain(text) if sys.stdout.isatty() else text
