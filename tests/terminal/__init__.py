"""`legato serve` as a person runs it: a real process, its real output, a real socket."""
