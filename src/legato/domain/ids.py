"""Typed ids. Each carries 128 random bits, says nothing, grants nothing, and never changes.

A turn's id is what clients know as a response id, so its prefix is `resp_`.
"""

import secrets
from typing import NewType

PrincipalId = NewType("PrincipalId", str)
ConversationId = NewType("ConversationId", str)
TurnId = NewType("TurnId", str)
EntryId = NewType("EntryId", str)
NodeId = NewType("NodeId", str)

CONVERSATION_PREFIX = "conv_"
TURN_PREFIX = "resp_"


def new_id(prefix: str) -> str:
    """A fresh id such as `msg_5f0c…`."""
    return prefix + secrets.token_hex(16)


def new_conversation_id() -> ConversationId:
    return ConversationId(new_id(CONVERSATION_PREFIX))


def new_turn_id() -> TurnId:
    return TurnId(new_id(TURN_PREFIX))


def new_node_id() -> NodeId:
    return NodeId(new_id("node_"))


def new_call_id() -> str:
    return new_id("call_")
