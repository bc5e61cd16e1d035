"""Entries: the records of a conversation's log.

A conversation is a numbered list of entries, and you may only append. A *body* says what was said or done;
an *entry* is a body at a position; a *draft* is a body that has an id and no position yet.

The control bodies (compaction, expand, rewind, pin, hide, remove) change nothing that was written: they change what
`window` shows of it. Positions in them are positions of the same log.
"""

from typing import Any, Literal

from msgspec import Struct

from legato.domain.ids import EntryId, TurnId, new_id
from legato.domain.window import Context


class Text(Struct, frozen=True, tag="text", tag_field="type", omit_defaults=True):
    """Words. With `refusal` they say that the model will not answer, and why."""

    text: str
    refusal: bool = False


class Image(Struct, frozen=True, tag="image", tag_field="type", omit_defaults=True):
    """An image by reference: the hash of a stored blob, or a URL that the provider fetches."""

    blob: str | None = None
    url: str | None = None
    media_type: str | None = None
    detail: str | None = None


class File(Struct, frozen=True, tag="file", tag_field="type", omit_defaults=True):
    blob: str | None = None
    url: str | None = None
    name: str | None = None
    media_type: str | None = None


Part = Text | Image | File


class Tool(Struct, frozen=True, omit_defaults=True):
    """What a model is told about a tool (`strict`: its arguments fit the parameters exactly), and whether it may run
    again after a crash in doubt. A `custom` tool of a client takes plain text where the model knows a function."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    repeatable: bool = False
    strict: bool | None = None
    custom: bool = False


class Body(Struct, frozen=True, tag_field="kind", omit_defaults=True):
    """What an entry holds. The subclasses are the kinds; their tags are the words of the log."""


Role = Literal["user", "assistant", "system", "developer"]


class Message(Body, frozen=True, tag="message"):
    role: Role
    parts: tuple[Part, ...]
    sender: str | None = None
    incomplete: bool = False

    @property
    def text(self) -> str:
        parts = self.parts
        if len(parts) == 1 and type(parts[0]) is Text:  # nearly all are this, and a prompt has thousands
            return parts[0].text
        return "".join([part.text for part in parts if isinstance(part, Text)])

    @property
    def refusal(self) -> bool:
        """Whether it says nothing but that the model will not answer."""
        return bool(self.parts) and all(isinstance(part, Text) and part.refusal for part in self.parts)


class Reasoning(Body, frozen=True, tag="reasoning"):
    text: str = ""
    encrypted: str | None = None
    incomplete: bool = False


class ToolCall(Body, frozen=True, tag="tool_call"):
    """A call the model made. `client` calls are answered by the client, the others by a toolset here. Of a `custom` one
    the client is told the text that is in the arguments."""

    call_id: str
    name: str
    arguments: str
    client: bool = False
    custom: bool = False


class ToolResult(Body, frozen=True, tag="tool_result"):
    """What a call gave back, in words; `parts` are all of it where there is more. `unknown`: a crash hid whether it
    happened, and nobody guessed. `custom`: it is what a custom tool of the client gave."""

    call_id: str
    output: str
    is_error: bool = False
    unknown: bool = False
    parts: tuple[Part, ...] = ()
    custom: bool = False

    @property
    def attached(self) -> tuple[Image | File, ...]:
        return tuple(part for part in self.parts if not isinstance(part, Text))


class Note(Body, frozen=True, tag="note"):
    """Something people should see and the model should not."""

    text: str
    reason: str = ""


class Setup(Body, frozen=True, tag="setup"):
    """The exact instructions, tools and model of the turns that follow: the prompt's byte-stable prefix."""

    agent: str
    model: str
    instructions: str = ""
    tools: tuple[Tool, ...] = ()


class Compaction(Body, frozen=True, tag="compaction"):
    """Stands, in the context, for every entry up to and including `upto`: a summary, and what was done. `before` and
    `after` are the tokens of what it stands for, and its own."""

    upto: int
    summary: str
    by: str = ""
    why: str = ""
    actions: tuple[str, ...] = ()
    before: int = 0
    after: int = 0


class Expand(Body, frozen=True, tag="expand"):
    """Voids one compaction, pin, hide or removal: the one at position `of`."""

    of: int


class Rewind(Body, frozen=True, tag="rewind"):
    """Hides everything after position `to`, up to itself, from people and models alike."""

    to: int


class Pin(Body, frozen=True, tag="pin"):
    """Keeps the entry at position `at` verbatim in the context, whatever is compacted; one `with_summary` only as long
    as the compaction that it was written with is in force."""

    at: int
    with_summary: bool = False


class Hide(Body, frozen=True, tag="hide"):
    """Takes the positions `first` to `last` out of the context; people still see them."""

    first: int
    last: int
    why: str = ""


class Remove(Body, frozen=True, tag="remove"):
    """Takes the entry at position `at` out of sight, for people and models alike."""

    at: int


AnyBody = (
    Message | Reasoning | ToolCall | ToolResult | Note | Setup | Compaction | Expand | Rewind | Pin | Hide | Remove
)
Item = Message | Reasoning | ToolCall | ToolResult
"""The bodies a model can be shown."""

ControlBody = Compaction | Expand | Rewind | Pin | Hide | Remove

_PREFIX: dict[type[Body], str] = {
    Message: "msg_",
    Reasoning: "rs_",
    ToolCall: "fc_",
    ToolResult: "fco_",
    Compaction: "cmp_",
}
_CUSTOM_PREFIX: dict[type[Body], str] = {ToolCall: "ctc_", ToolResult: "ctco_"}


def kind_of(body: Body) -> str:
    """The word of the log for this body."""
    return str(body.__struct_config__.tag)


def span_of(body: Body) -> tuple[int | None, int | None]:
    """The positions (first, last) a body points at, as the log's columns keep them."""
    match body:
        case Pin(at=at, with_summary=True):
            return at, at
        case Compaction(upto=ref) | Expand(of=ref) | Rewind(to=ref) | Pin(at=ref) | Remove(at=ref):
            return None, ref
        case Hide(first=first, last=last):
            return first, last
        case _:
            return None, None


class Draft(Struct, frozen=True):
    """A body with an id, not yet at a position."""

    id: EntryId
    body: AnyBody


def draft(body: AnyBody, id: str | None = None, *, moment: str = "") -> Draft:
    custom = isinstance(body, ToolCall | ToolResult) and body.custom
    return Draft(EntryId(id) if id else new_entry_id(type(body), custom=custom, moment=moment), body)


def new_entry_id(kind: type[Body], *, custom: bool = False, moment: str = "") -> EntryId:
    """An id that begins with what it is of and, where a turn said it, with the moment of that turn."""
    return EntryId(new_id((_CUSTOM_PREFIX if custom else _PREFIX).get(kind, "ent_") + moment))


class Entry(Struct, frozen=True):
    """A body at a position of a log, written by a turn."""

    seq: int
    id: EntryId
    turn_id: TurnId
    body: AnyBody
    created_at: float


class View(Struct, frozen=True):
    """What a model sees of a conversation: the setup in force, the summary of the past, the entries verbatim.
    `head`, `control` and `seen` say of which state of the log this is the view. Entries up to `after` are left out,
    because whoever asked knows them."""

    setup: Setup | None
    summary: Compaction | None
    entries: tuple[Entry, ...]
    head: int
    control: int
    seen: Context = Context(None, None, ())
    after: int = 0
