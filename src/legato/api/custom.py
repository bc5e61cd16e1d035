"""Custom tools: the client's, which take plain text and give plain text.

Few servers of models know them, and all know functions. So the model is offered a function with one parameter, the log
keeps what the model said, and the text in it is taken out where a client is told of the call.
"""

import msgspec
from msgspec import Struct

from legato.domain.entries import Tool


class _Arguments(Struct):
    input: str


def as_function(name: str, description: str) -> Tool:
    """The function that stands for a custom tool."""
    text = {"type": "string", "description": "The input of the tool, as plain text."}
    parameters = {"type": "object", "properties": {"input": text}, "required": ["input"], "additionalProperties": False}
    return Tool(name, description, parameters, custom=True)


def input_of(arguments: str) -> str:
    """The text that a call of that function is for. A model may not do as it was told: then it is all that it said."""
    try:
        return msgspec.json.decode(arguments, type=_Arguments).input
    except (msgspec.DecodeError, RecursionError):
        return arguments


def arguments_of(given: str) -> str:
    """The arguments that say this text."""
    return msgspec.json.encode(_Arguments(given)).decode()
