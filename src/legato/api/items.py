"""Items: the wire's words for what is said, and ours.

What a client sends is checked here, item by item, and becomes drafts; whatever does not fit is refused by the name of
its place (`input[2].content[0].type`). What the log holds becomes items again for any client that asks.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from legato.api.custom import arguments_of, input_of
from legato.api.wire import MissingParameter, misfit
from legato.domain.attachments import blob_of, is_inline
from legato.domain.entries import (
    AnyBody,
    Compaction,
    Draft,
    Entry,
    File,
    Image,
    Message,
    Note,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    draft,
)
from legato.engine.prompt import SUMMARY_HEAD
from legato.errors import BadInput, NotFound

T = TypeVar("T")


class UnknownItem(NotFound):
    """No item by that id."""

    code = "item_not_found"


Id = Annotated[str, Meta(min_length=1, max_length=255)]
MAX_URL = 20_971_520

GivenItem = Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/components/schemas/GivenItem"})]
GivenTool = Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/components/schemas/GivenTool"})]
GivenPart = Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/components/schemas/GivenPart"})]


class GivenMessage(Struct):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[GivenPart]
    type: Literal["message"] = "message"
    id: Id | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class GivenFunctionCall(Struct):
    type: Literal["function_call"]
    call_id: Id
    name: Annotated[str, Meta(min_length=1, max_length=255)]
    arguments: str
    id: Id | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class GivenFunctionCallOutput(Struct):
    type: Literal["function_call_output"]
    call_id: Id
    output: str | list[GivenPart]
    id: Id | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class GivenCustomToolCall(Struct):
    type: Literal["custom_tool_call"]
    call_id: Id
    name: Annotated[str, Meta(min_length=1, max_length=255)]
    input: str
    id: Id | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class GivenCustomToolCallOutput(Struct):
    type: Literal["custom_tool_call_output"]
    call_id: Id
    output: str | list[GivenPart]
    id: Id | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class GivenThought(Struct):
    text: str


class GivenReasoning(Struct):
    type: Literal["reasoning"]
    summary: list[GivenThought] = []
    content: list[GivenThought] | None = None
    encrypted_content: str | None = None
    id: Id | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class TextPart(Struct):
    type: Literal["input_text", "output_text", "text", "summary_text"]
    text: str


class RefusalPart(Struct):
    type: Literal["refusal"]
    refusal: str


class ImagePart(Struct):
    type: Literal["input_image"]
    image_url: Annotated[str, Meta(max_length=MAX_URL)]
    detail: Literal["low", "high", "auto", "original"] | None = None


class FilePart(Struct):
    """A file needs its data or its address."""

    type: Literal["input_file"]
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None


class GivenCompaction(Struct):
    """A summary that `/v1/responses/compact` gave."""

    type: Literal["compaction"]
    encrypted_content: str
    id: Id | None = None


class ItemReference(Struct):
    """An item that a turn said, by its id, in place of the item."""

    id: Id
    type: Literal["item_reference"] | None = None


class AdditionalTools(Struct):
    """Tools among what is said. They are offered with those of the request, and are nothing that was said."""

    type: Literal["additional_tools"]
    tools: list[GivenTool]
    role: Literal["developer"] = "developer"
    id: Id | None = None


ITEMS = (
    GivenMessage,
    GivenFunctionCall,
    GivenFunctionCallOutput,
    GivenCustomToolCall,
    GivenCustomToolCallOutput,
    GivenReasoning,
    GivenCompaction,
    ItemReference,
    AdditionalTools,
)
PARTS = (TextPart, RefusalPart, ImagePart, FilePart)


def parse_input(
    given: str | list[dict[str, Any]], param: str = "input", meant: Mapping[str, AnyBody] | None = None
) -> tuple[Draft, ...]:
    """What a request brings, as drafts. `meant` is what its references mean, where they may stand; so may tools, which
    are not among the drafts."""
    if isinstance(given, str):
        return (draft(Message("user", (Text(given),))),)
    said = [(place, item) for place, item in enumerate(given) if meant is None or not brings_tools(item)]
    return tuple(parse_item(item, f"{param}[{place}]", meant) for place, item in said)


def brings_tools(item: dict[str, Any]) -> bool:
    return item.get("type") == "additional_tools"


def referred(item: dict[str, Any]) -> str | None:
    """The id of what an item stands for, where it only refers to another."""
    named = item.get("id")
    return named if _kind(item) == "item_reference" and isinstance(named, str) else None


def _kind(item: dict[str, Any]) -> Any:
    """What an item says it is; a message and a reference need not say it."""
    return item.get("type") or ("message" if "role" in item else "item_reference" if "id" in item else None)


def parse_item(item: dict[str, Any], param: str, meant: Mapping[str, AnyBody] | None = None) -> Draft:
    """One item. The ids that clients send are theirs; ours are made here."""
    kind = _kind(item)
    match kind:
        case "item_reference" if meant is not None:
            body = meant.get(take(item, ItemReference, param).id)
            if body is None:
                raise UnknownItem(f"Item with id '{item['id']}' not found.", param=f"{param}.id")
            return draft(body)
        case "message":
            message = take(item, GivenMessage, param)
            return draft(
                Message(
                    message.role,
                    content_of(message.content, f"{param}.content"),
                    incomplete=message.role == "assistant" and message.status == "incomplete",
                )
            )
        case "function_call":
            call = take(item, GivenFunctionCall, param)
            return draft(ToolCall(call.call_id, call.name, call.arguments, client=True))
        case "function_call_output":
            output = take(item, GivenFunctionCallOutput, param)
            return draft(result(output.call_id, content_of(output.output, f"{param}.output")))
        case "custom_tool_call":
            custom = take(item, GivenCustomToolCall, param)
            arguments = arguments_of(custom.input)
            return draft(ToolCall(custom.call_id, custom.name, arguments, client=True, custom=True))
        case "custom_tool_call_output":
            given = take(item, GivenCustomToolCallOutput, param)
            return draft(result(given.call_id, content_of(given.output, f"{param}.output"), custom=True))
        case "reasoning":
            thought = take(item, GivenReasoning, param)
            text = "".join(part.text for part in (thought.content or thought.summary))
            return draft(Reasoning(text, thought.encrypted_content))
        case "compaction":
            summary = take(item, GivenCompaction, param).encrypted_content
            return draft(Message("system", (Text(SUMMARY_HEAD + summary),)))
        case None:
            raise MissingParameter.named(f"{param}.type")
        case _:
            raise BadInput(f"Items of type {kind!r} are not supported.", param=f"{param}.type")


def take(value: Any, kind: type[T], param: str) -> T:
    """A value of a known type, or a refusal that names the place."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise misfit(error, param) from error


def content_of(content: str | list[dict[str, Any]], param: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),)
    return tuple(_part(part, f"{param}[{place}]") for place, part in enumerate(content))


def _part(part: dict[str, Any], param: str) -> Part:
    match part.get("type"):
        case "input_text" | "output_text" | "text" | "summary_text":
            return Text(take(part, TextPart, param).text)
        case "refusal":
            return Text(take(part, RefusalPart, param).refusal, refusal=True)
        case "input_image":
            image = take(part, ImagePart, param)
            return Image(url=address(image.image_url, f"{param}.image_url"), detail=image.detail)
        case "input_file":
            file = take(part, FilePart, param)
            if file.file_data is not None:
                return File(url=address(file.file_data, f"{param}.file_data", inline=True), name=file.filename)
            if file.file_url is None:
                raise BadInput("A file needs 'file_data' or 'file_url'.", param=f"{param}.file_data")
            return File(url=address(file.file_url, f"{param}.file_url"), name=file.filename)
        case kind:
            raise BadInput(f"Content of type {kind!r} is not supported.", param=f"{param}.type")


def address(url: str, param: str, *, inline: bool = False) -> str:
    """Where an attachment is: a data URL that is well-formed, or a web address for the model's server to fetch. What is
    inline may be bare base64 as well."""
    if inline and not is_inline(url):
        url = f"data:application/octet-stream;base64,{url}"
    if is_inline(url):
        try:
            blob_of(url)
        except ValueError as error:
            raise BadInput(f"That is no attachment: {error}", param=param) from error
    elif not url.lower().startswith(("https://", "http://")):
        raise BadInput("An attachment is a data URL or a web address.", param=param)
    return url


def result(call_id: str, parts: tuple[Part, ...], between: str = "\n", *, custom: bool = False) -> ToolResult:
    """A tool's output: text, and all of it where there is more."""
    text = between.join(part.text if isinstance(part, Text) else "[an attachment]" for part in parts)
    plain = all(isinstance(part, Text) for part in parts)
    return ToolResult(call_id, text, parts=() if plain else parts, custom=custom)


# -- ours, in the wire's words


def render(entry: Entry) -> dict[str, Any] | None:
    """An entry as an item; what clients have no word for is left out."""
    return item(entry.id, entry.body)


def item(entry_id: str, body: AnyBody, status: str | None = None) -> dict[str, Any] | None:
    """A body as an item, in the state it has in the log unless told otherwise."""
    match body:
        case Message():
            return message(entry_id, body, status or ("incomplete" if body.incomplete else "completed"))
        case Reasoning(text=text, encrypted=encrypted):
            shown: dict[str, Any] = {"id": entry_id, "type": "reasoning", "summary": summary(text)}
            if encrypted is not None:
                shown["encrypted_content"] = encrypted
            shown["status"] = status or ("incomplete" if body.incomplete else "completed")
            return shown
        case ToolCall(call_id=call_id, name=name, arguments=arguments, custom=True):
            return custom_called(entry_id, call_id, name, input_of(arguments), status or "completed")
        case ToolCall(call_id=call_id, name=name, arguments=arguments):
            return called(entry_id, call_id, name, arguments, status or "completed")
        case ToolResult(call_id=call_id, output=output, is_error=is_error, parts=parts, custom=custom):
            told = [_shown(part, "user") for part in parts] or output
            return answered(entry_id, call_id, told, is_error, custom=custom)
        case Compaction():
            return compacted(entry_id, body)
        case Note():
            return None
        case _:
            return None


def called(entry_id: str, call_id: str, name: str, arguments: str, status: str) -> dict[str, Any]:
    told = {"id": entry_id, "type": "function_call", "call_id": call_id}
    return told | {"name": name, "arguments": arguments, "status": status}


def custom_called(entry_id: str, call_id: str, name: str, given: str, status: str) -> dict[str, Any]:
    told = {"id": entry_id, "type": "custom_tool_call", "call_id": call_id}
    return told | {"name": name, "input": given, "status": status}


def answered(
    entry_id: str, call_id: str, output: str | list[dict[str, Any]], is_error: bool, *, custom: bool = False
) -> dict[str, Any]:
    """The result of a call; the API has no word for one that failed."""
    kind = "custom_tool_call_output" if custom else "function_call_output"
    told = {"id": entry_id, "type": kind, "call_id": call_id, "output": output, "status": "completed"}
    return told | ({"legato": {"is_error": True}} if is_error else {})


def compacted(entry_id: str, body: Compaction) -> dict[str, Any]:
    """A summary: of what, by whom, why, and how much shorter it is."""
    about = {"upto": body.upto, "why": body.why, "tokens_before": body.before, "tokens_after": body.after}
    return {
        "id": entry_id,
        "type": "compaction",
        "encrypted_content": body.summary,
        "created_by": body.by or None,
        "legato": about,
    }


def message(entry_id: str, body: Message, status: str) -> dict[str, Any]:
    return {
        "id": entry_id,
        "type": "message",
        "role": body.role,
        "status": status,
        "content": [_shown(part, body.role) for part in body.parts],
    }


def summary(text: str) -> list[dict[str, str]]:
    return [{"type": "summary_text", "text": text}] if text else []


def output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def refused(text: str) -> dict[str, Any]:
    return {"type": "refusal", "refusal": text}


def _shown(part: Part, role: str) -> dict[str, Any]:
    match part:
        case Text(text=text, refusal=True) if role == "assistant":
            return refused(text)
        case Text(text=text):
            return output_text(text) if role == "assistant" else {"type": "input_text", "text": text}
        case Image(url=url, detail=detail):
            return {"type": "input_image", "image_url": url, "detail": detail or "auto", "file_id": None}
        case File(url=url, name=name):
            place = "file_data" if is_inline(url) else "file_url"
            return {"type": "input_file", place: url, "filename": name, "file_id": None}
