"""The tools that a client brings, and which of them it wants called.

Those of the namespace `functions` are tools like any other: so OpenAI's models call the place where functions are, and
Codex writes it down.
"""

from collections.abc import Iterator
from typing import Any, get_args

from legato.api.create_response import (
    AllowedTools,
    ChosenCustom,
    ChosenFunction,
    CustomTool,
    Functions,
    FunctionTool,
    Grammar,
)
from legato.api.custom import as_function
from legato.api.items import AdditionalTools, brings_tools, take
from legato.api.unheeded import HostedKind
from legato.api.wire import MissingParameter
from legato.domain.entries import Tool
from legato.errors import BadInput

OfferedTool = FunctionTool | CustomTool
Chosen = ChosenFunction | ChosenCustom | AllowedTools
Choice = str | Chosen
HOSTED = get_args(HostedKind)
FUNCTIONS = "functions"


def parse_tools(given: list[dict[str, Any]] | None, param: str = "tools") -> list[OfferedTool]:
    """The tools that the model is offered: those that the client answers for."""
    return [offered for place, tool in enumerate(given or ()) for offered in _parsed(tool, f"{param}[{place}]")]


def parse_additional(said: str | list[dict[str, Any]] | None) -> list[OfferedTool]:
    """The same of those that stand among what is said."""
    among = enumerate(said if isinstance(said, list) else ())
    brought = [
        (take(item, AdditionalTools, f"input[{n}]"), f"input[{n}].tools") for n, item in among if brings_tools(item)
    ]
    return [offered for more, param in brought for offered in parse_tools(more.tools, param)]


def _parsed(given: dict[str, Any], param: str) -> Iterator[OfferedTool]:
    match given.get("type"):
        case "function":
            yield take(given, FunctionTool, param)
        case "custom":
            yield take(given, CustomTool, param)
        case "namespace" if given.get("name") == FUNCTIONS:
            yield from take(given, Functions, param).tools
        case None:
            raise MissingParameter.named(f"{param}.type")
        case kind if kind not in HOSTED:
            raise BadInput(f"Tools of type {kind!r} are not supported.", param=f"{param}.type")


def tool_of(given: OfferedTool) -> Tool:
    """A tool of the client, as the model is told of it."""
    if isinstance(given, FunctionTool):
        return Tool(given.name, given.description or "", given.parameters or {}, strict=given.strict)
    said = [given.description] if given.description else []
    if isinstance(given.format, Grammar):
        said.append(f"The input must follow this {given.format.syntax} grammar:\n{given.format.definition}")
    return as_function(given.name, "\n\n".join(said))


def parse_choice(given: str | dict[str, Any] | None) -> Choice | None:
    """Which tools the client wants called."""
    if not isinstance(given, dict):
        return given
    allowed = given.get("tools")
    for named in (given, *(allowed if isinstance(allowed, list) else ())):
        if isinstance(named, dict) and (kind := named.get("type")) in (*HOSTED, "computer_use"):
            raise BadInput(f"The tool '{kind}' is not run here, so it cannot be chosen.", param="tool_choice")
    return take(given, Chosen, "tool_choice")  # type: ignore[arg-type]  # a union of types is one to msgspec


def choice_of(chosen: Choice) -> str | dict[str, Any]:
    """The choice in the words of Chat Completions, in which models are asked."""
    match chosen:
        case str():
            return chosen
        case AllowedTools(mode=mode, tools=tools):
            allowed = {"mode": mode, "tools": [choice_of(tool) for tool in tools]}
            return {"type": "allowed_tools", "allowed_tools": allowed}
        case ChosenFunction(name=name) | ChosenCustom(name=name):
            return {"type": "function", "function": {"name": name}}
