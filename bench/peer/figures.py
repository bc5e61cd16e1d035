"""What a run found, as plain values: measured once, in minutes; made into a page as often as its words change."""

import msgspec


class Crowd(msgspec.Struct, frozen=True):
    """One round of some clients who talk at the same time."""

    rate: float  # turns a second
    cpu: float  # ms of CPU a turn
    took: list[float]  # ms of each turn


class Block(msgspec.Struct, frozen=True):
    """Some turns of a long talk, each figure with what the server put off until after its answers."""

    turn: int  # the last of them
    written: float  # bytes a turn that went to the disk
    handed: float  # bytes a turn that were handed to the system to be written
    disk: int  # bytes by which the home has grown since before the talk, without write-ahead logs
    wal: int  # bytes of write-ahead logs: what is not moved into the database yet
    cpu: float  # ms a turn


class Talk(msgspec.Struct, frozen=True):
    """One long conversation."""

    took: list[float]  # ms of each turn
    blocks: list[Block]
    memory: tuple[int, int]  # resident bytes before and after
    sent: int  # words of earlier answers that the next prompt held
    said: int  # words of answers that there had been


class Measured(msgspec.Struct, frozen=True):
    """One of the two."""

    starts: list[float]  # s until it is ready
    firsts: list[float]  # s from the start of the process to the end of its first answer
    crowds: dict[int, list[Crowd]]  # by the number of clients
    tokens: dict[str, list[float]]  # ms to the first token, by route
    talks: dict[str, Talk]  # by route
    size: int  # bytes of its installation
    packages: int
    lines: int


class Outcome(msgspec.Struct, frozen=True):
    """What became of a conversation to which something happened."""

    what: str
    held: bool
    seen: str


class Machine(msgspec.Struct, frozen=True):
    cpu: str
    cores: int
    memory: float  # GB
    kernel: str
    python: str
    loop: float  # ms that a million additions take
    load: float  # load average before the run


class Results(msgspec.Struct, frozen=True):
    date: str
    seconds: float
    quick: bool
    machine: Machine
    measured: dict[str, Measured]
    outcomes: dict[str, list[Outcome]]
