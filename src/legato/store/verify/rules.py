"""The rules that `verify` re-proves, and what it says when one is broken."""

from enum import Enum

from msgspec import Struct


class Rule(Enum):
    """What is true of every sound store. The name is stable; the value says it in words."""

    # the database
    file = "the database finds its own file sound"
    schema = "every table, index and trigger that the migrations made is there"
    readable = "everything can be read"
    value = "every value has its column's type, and is a word that the column knows"
    reference = "what a row refers to exists"
    dedup = "a submission is admitted once"
    address = "an address is well-formed and means one conversation in the whole installation"
    blob = "a blob's hash and size are those of its bytes"

    # a conversation and its turns
    lineage = "a fork begins at a position of its parent, and no conversation is its own ancestor"
    owner = "a conversation, its names, its turns and its parent belong to one principal"
    deleted = "a conversation that was deleted has given its names back"
    purged = "a conversation that was purged is deleted, and holds nothing but what its forks read"
    fence = "a fence is never negative, and a turn that runs has raised it"
    order = "the order of admission begins at 1, has no duplicate, and ends at the conversation's count"
    tip = "the tip is the newest talk turn"
    parent = "a talk turn continues an earlier talk turn of its lineage"
    joined = "a turn joins a talk turn of the same conversation that has not itself joined another"
    running = "one turn of a conversation runs at a time"
    status = "a turn's status agrees with its owner, its end and its place in the log"
    span = "a turn's first and last position are in its conversation's log"
    json = "a turn's input, usage and failure, a conversation's settings and a delivery's body can be understood"

    # the log
    gap = "positions are numbered from where the log begins to its head, without a gap"
    beyond = "no entry is beyond the head, or before the log begins"
    doubled = "an entry is in its log once"
    body = "an entry's body can be understood"
    columns = "an entry's columns say what its body says"
    writer = "an entry was written by a turn of its conversation, between the turn's first and last position"
    target = "a control entry points at earlier positions, and at something that it can speak of"
    brought = "what a turn brought is in the log, as it was brought"
    call = "the result of a tool that runs here comes after its call"
    answer = "a turn that is done has answered every call of a tool that runs here"
    attachment = "what a message attaches is kept"

    # what follows from it
    events = "a turn's events are numbered from 0 without a gap, and can be understood"
    items = "followers of a turn were told of items that open once, close, and are what the log says"
    delivery = "an answer is owed by a turn that has ended, and an address has one in flight"
    search = "search knows every text of an indexed turn, and nothing that is not there"


class Finding(Struct, frozen=True):
    """A rule that is broken, where, and how."""

    rule: Rule
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}. Rule '{self.rule.name}': {self.rule.value}."
