"""Typed ids. Each carries 128 random bits, grants nothing, and never changes.

A turn's id is what clients know as a response id, so its prefix is `resp_`. Before the random bits it has the moment in
which it was made: turns of one time then stand together in every index, and an installation with millions of them
writes to the end of each, not all over it. A conversation's id has not: people name it by how it begins. The items that
a model says have the moment of their turn, by which they are found without an index of their own.

Randomness is fetched for many ids at once: asking the system for each lets go of the interpreter, and where two threads
are busy, having it back takes longer than the id.
"""

import os
import secrets
import time
from typing import NewType

PrincipalId = NewType("PrincipalId", str)
ConversationId = NewType("ConversationId", str)
TurnId = NewType("TurnId", str)
EntryId = NewType("EntryId", str)
NodeId = NewType("NodeId", str)

CONVERSATION_PREFIX = "conv_"
TURN_PREFIX = "resp_"
TICKS = 2**16  # in a second: a busy gateway makes thousands of turns in one
MOMENT = 12  # hexadecimal digits


_ready: list[str] = []
os.register_at_fork(after_in_child=_ready.clear)  # two processes must not draw the same


def new_id(prefix: str) -> str:
    """A fresh id such as `msg_5f0c…`."""
    try:
        return prefix + _ready.pop()  # one step, whatever other threads do
    except IndexError:
        drawn = secrets.token_hex(16 * 256)
        _ready.extend(drawn[i : i + 32] for i in range(32, len(drawn), 32))
        return prefix + drawn[:32]


def new_conversation_id() -> ConversationId:
    return ConversationId(new_id(CONVERSATION_PREFIX))


def new_turn_id() -> TurnId:
    return TurnId(new_id(f"{TURN_PREFIX}{int(time.time() * TICKS):0{MOMENT}x}"))


def moment_of(id: str) -> str:
    """When what has this id was made, as ids say it; for an id that does not say it, something that no turn has."""
    return id.partition("_")[2][:MOMENT].ljust(MOMENT, "-")


def new_node_id() -> NodeId:
    return NodeId(new_id("node_"))


def new_call_id() -> str:
    return new_id("call_")
