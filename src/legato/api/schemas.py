"""What the API answers, and what it reads from queries and headers, as types: what `/openapi.json` says of them.

The routes build plain dicts and read one parameter at a time. These types describe that and are used for nothing else;
a test asks a running server for everything the document names and holds the two together.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from legato.api.create_response import (
    AllowedTools,
    ChosenCustom,
    ChosenFunction,
    CustomTool,
    FunctionTool,
    JsonObject,
    JsonSchema,
    Metadata,
    PlainText,
    ReasoningConfig,
)
from legato.domain.checks import Check
from legato.domain.grams import MAX_QUERY
from legato.domain.turns import Busy, CutBy
from legato.engine.care import Progress
from legato.store.figures import Figures, StoreFigures

ItemStatus = Literal["in_progress", "completed", "incomplete"]
Offset = Annotated[int, Meta(ge=0, le=10_000)]
Name = Annotated[str, Meta(min_length=1, max_length=255)]

# -- queries and headers


class Paging(Struct):
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    after: Name | UnsetType = UNSET


class ConversationPaging(Paging):
    q: Annotated[str, Meta(min_length=1, max_length=MAX_QUERY)] | UnsetType = UNSET
    kind: str | UnsetType = UNSET


class Searching(Struct):
    q: Annotated[str, Meta(min_length=1, max_length=MAX_QUERY)]
    limit: Annotated[int, Meta(ge=1, le=100)] = 20


class Limited(Struct):
    limit: Annotated[int, Meta(ge=1, le=100)] = 20


class TrashPaging(Struct):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20
    after: Name | UnsetType = UNSET


class Resolving(Struct):
    what: Annotated[str, Meta(min_length=1, max_length=500)]
    limit: Annotated[int, Meta(ge=1, le=100)] = 20


class ItemPaging(Paging):
    order: Literal["asc", "desc"] = "desc"


class SessionPaging(Struct):
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    offset: Offset = 0
    source: str | UnsetType = UNSET


class MessagePaging(Struct):
    limit: Annotated[int, Meta(ge=1, le=2**53)] | UnsetType = UNSET
    offset: Annotated[int, Meta(ge=0, le=2**53)] = 0
    order: Literal["asc", "desc", "oldest", "latest"] = "asc"


class Following(Struct):
    stream: bool = False
    starting_after: Annotated[int, Meta(ge=0, le=2**53)] | UnsetType = UNSET


class OnceHeader(Struct, rename={"key": "Idempotency-Key"}):
    key: Name | UnsetType = UNSET


class TurnHeaders(OnceHeader, rename={"busy": "X-Legato-Busy"}):
    busy: Busy = "queue"


class SessionHeaders(TurnHeaders, rename={"session": "X-Hermes-Session-Id", "conversation": "X-Legato-Conversation"}):
    session: Name | UnsetType = UNSET
    conversation: Name | UnsetType = UNSET


class LastSeen(Struct, rename={"last": "Last-Event-ID"}):
    last: str | UnsetType = UNSET


# -- errors and events


class ErrorBody(Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(Struct):
    """The envelope of every refusal."""

    error: ErrorBody


class Event(Struct):
    """A server-sent event. Its data is JSON, but for the `[DONE]` that ends the streams of OpenAI's routes."""

    data: str
    event: str | UnsetType = UNSET
    id: str | UnsetType = UNSET


class Line(Struct):
    """A line of an export: of a conversation first, then its turns, attachments and entries, and its end."""

    type: Literal["conversation", "turn", "blob", "entry", "end"]


class ImportedConversation(Struct):
    id: str
    outcome: Literal["imported", "present", "refused"]
    why: str | UnsetType = UNSET
    lost_names: list[str] | UnsetType = UNSET
    lost_entries: int | UnsetType = UNSET


class DamagedLine(Struct):
    line: int
    why: str


class ImportReport(Struct):
    object: Literal["import"]
    lines: int
    conversations: list[ImportedConversation]
    damaged: list[DamagedLine]
    omitted: int


class Exporting(Struct):
    format: Literal["jsonl", "markdown", "html"] = "jsonl"


# -- items


class InputText(Struct, tag="input_text", tag_field="type"):
    text: str


class InputImage(Struct, tag="input_image", tag_field="type"):
    image_url: str
    detail: Literal["low", "high", "auto", "original"]
    file_id: None


class InputFile(Struct, tag="input_file", tag_field="type"):
    file_url: str | None
    filename: str | None
    file_id: None


class OutputText(Struct, tag="output_text", tag_field="type"):
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class Refusal(Struct, tag="refusal", tag_field="type"):
    refusal: str


class SummaryText(Struct, tag="summary_text", tag_field="type"):
    text: str


class MessageItem(Struct, tag="message", tag_field="type"):
    id: str
    role: Literal["user", "assistant", "system", "developer"]
    status: ItemStatus
    content: list[InputText | InputImage | InputFile | OutputText | Refusal]


class ReasoningItem(Struct, tag="reasoning", tag_field="type"):
    id: str
    summary: list[SummaryText]
    status: ItemStatus
    encrypted_content: str | UnsetType = UNSET


class FunctionCallItem(Struct, tag="function_call", tag_field="type"):
    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


class Failed(Struct):
    is_error: bool


class FunctionCallOutputItem(Struct, tag="function_call_output", tag_field="type"):
    id: str
    call_id: str
    output: str | list[InputText | InputImage | InputFile]
    status: ItemStatus
    legato: Failed | UnsetType = UNSET


class CustomToolCallItem(Struct, tag="custom_tool_call", tag_field="type"):
    id: str
    call_id: str
    name: str
    input: str
    status: ItemStatus


class CustomToolCallOutputItem(Struct, tag="custom_tool_call_output", tag_field="type"):
    id: str
    call_id: str
    output: str | list[InputText | InputImage | InputFile]
    status: ItemStatus
    legato: Failed | UnsetType = UNSET


class Folded(Struct):
    upto: int
    why: str
    tokens_before: int
    tokens_after: int


class CompactionItem(Struct, tag="compaction", tag_field="type"):
    id: str
    encrypted_content: str
    created_by: str | None = None
    legato: Folded | None = None


Item = (
    MessageItem
    | ReasoningItem
    | FunctionCallItem
    | FunctionCallOutputItem
    | CustomToolCallItem
    | CustomToolCallOutputItem
    | CompactionItem
)


class Page(Struct):
    object: Literal["list"]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ItemPage(Page):
    data: list[Item]


# -- responses


class CachedTokens(Struct):
    cached_tokens: int
    cache_write_tokens: int


class ReasoningTokens(Struct):
    reasoning_tokens: int


class Tokens(Struct):
    input_tokens: int
    output_tokens: int
    total_tokens: int


class ResponseUsage(Tokens):
    input_tokens_details: CachedTokens
    output_tokens_details: ReasoningTokens


class ResponseError(Struct):
    code: str
    message: str
    type: str
    param: None


class IncompleteDetails(Struct):
    reason: CutBy


class NamedConversation(Struct):
    id: str
    name: str | None


class ResponseText(Struct):
    format: PlainText | JsonObject | JsonSchema
    verbosity: Literal["low", "medium", "high"] | UnsetType = UNSET


class Response(Struct):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    incomplete_details: IncompleteDetails | None
    error: ResponseError | None
    model: str
    output: list[Item]
    usage: ResponseUsage | None
    conversation: NamedConversation | None
    previous_response_id: str | None
    instructions: str | None
    tools: list[FunctionTool | CustomTool]
    tool_choice: Literal["none", "auto", "required"] | ChosenFunction | ChosenCustom | AllowedTools
    parallel_tool_calls: bool
    max_tool_calls: int | None
    text: ResponseText
    reasoning: ReasoningConfig | None
    truncation: Literal["auto", "disabled"]
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    max_output_tokens: int | None
    store: bool
    background: bool
    service_tier: str
    metadata: Metadata
    safety_identifier: str | None
    prompt_cache_key: str | None
    user: str | None


class InputTokens(Struct):
    object: Literal["response.input_tokens"]
    input_tokens: int


class CompactedResponse(Struct):
    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[Item]
    usage: ResponseUsage


class ReceiptEntry(Struct):
    position: int
    id: str
    item: Item | None


class ReceiptSummary(Struct):
    upto: int
    text: str
    actions: list[str]
    by: str
    why: str
    tokens_before: int
    tokens_after: int


Span = tuple[int, int]


class Receipt(Struct):
    object: Literal["response.context"]
    response: str
    conversation: str
    position: int
    instructions: str
    tools: list[str]
    summary: ReceiptSummary | None
    verbatim: list[ReceiptEntry]
    folded: list[Span]
    hidden: list[Span]
    left_out: str | None


class ResponseDeleted(Struct):
    id: str
    object: Literal["response"]
    deleted: bool


# -- conversations


class Conversation(Struct):
    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: Metadata


class ConversationUsage(ResponseUsage, kw_only=True):
    object: Literal["conversation.usage"]
    conversation: str


class AliasedConversation(Conversation):
    name: str


class ListedConversation(Conversation):
    name: str | None
    title: str
    kind: str
    preview: str
    updated_at: int


class ConversationPage(Page):
    data: list[ListedConversation]


class DeletedConversation(ListedConversation):
    deleted_at: int


class Trash(Page):
    data: list[DeletedConversation]


class RestoredConversation(Conversation):
    lost_names: list[str]


class ConversationPurged(Struct):
    id: str
    object: Literal["conversation.purged"]
    purged: bool


class Scrubbed(Struct):
    object: Literal["scrubbed"]


class Resolved(Struct):
    object: Literal["list"]
    match: Literal["exact", "prefix", "near", "none"]
    data: list[ListedConversation]


class KnownCommand(Struct):
    name: str
    usage: str
    help: str


class CommandList(Struct):
    object: Literal["list"]
    data: list[KnownCommand]


class TalkGoesOn(Struct):
    id: str
    title: str
    name: str | None


class CommandReply(Struct):
    object: Literal["command"]
    text: str
    conversation: TalkGoesOn | None
    fresh: bool
    title: str | None
    turn: str | None


class ConversationDeleted(Struct):
    id: str
    object: Literal["conversation.deleted"]
    deleted: bool


# -- chat completions and models


class CalledFunction(Struct):
    name: str
    arguments: str


class ChatToolCall(Struct, tag="function", tag_field="type"):
    id: str
    function: CalledFunction


class ChatAnswer(Struct):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    annotations: list[Any]
    tool_calls: list[ChatToolCall] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChatChoice(Struct):
    index: int
    message: ChatAnswer
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"]
    logprobs: None


class ChatUsage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class ChatPlace(Struct):
    """Where the answer is kept."""

    conversation: str
    turn: str


class ChatCompletion(Struct):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    service_tier: str
    system_fingerprint: str | None
    choices: list[ChatChoice]
    usage: ChatUsage
    legato: ChatPlace


class Model(Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    context_window: int | None


class ModelList(Struct):
    object: Literal["list"]
    data: list[Model]


# -- the older world


class SearchHit(Struct):
    object: Literal["search.hit"]
    conversation: str
    position: int
    id: str
    created_at: int
    snippet: str


class SearchHits(Struct):
    object: Literal["list"]
    data: list[SearchHit]


class Pairing(Struct):
    object: Literal["pairing"]
    channel: str
    account: str
    sender: str
    name: str
    principal: str


class PairingList(Struct):
    object: Literal["list"]
    data: list[Pairing]


class PairingRemoved(Struct):
    object: Literal["pairing.removed"]
    channel: str
    sender: str


class Chat(Struct):
    object: Literal["chat"]
    channel: str
    account: str
    chat: str
    thread: str
    conversation: str


class ChatList(Struct):
    object: Literal["list"]
    data: list[Chat]


class Delivery(Struct):
    id: int
    object: Literal["delivery"]
    response: str
    conversation: str
    channel: str
    chat: str
    status: Literal["unknown", "dead"]
    attempts: int
    error: str | None
    updated_at: int


class Undelivered(Struct):
    object: Literal["list"]
    data: list[Delivery]


class Resent(Struct):
    id: int
    object: Literal["delivery.resent"]


class NewKey(Struct):
    object: Literal["key"]
    name: str
    principal: str
    scopes: list[str]
    key: str


class ListedKey(Struct):
    object: Literal["key"]
    name: str
    principal: str
    scopes: list[str]
    created_at: int
    revoked_at: int | None


class KeyList(Struct):
    object: Literal["list"]
    data: list[ListedKey]


class KeyRevoked(Struct):
    object: Literal["key.revoked"]
    name: str
    revoked: int


class Stats(Struct):
    object: Literal["stats"]
    principal: str
    own: Figures
    store: StoreFigures | None


class Diagnosis(Struct):
    object: Literal["diagnosis"]
    version: str
    checks: list[Check]


class SearchRebuilt(Struct):
    object: Literal["search.rebuilt"]


class ShownFinding(Struct):
    rule: str
    where: str
    what: str
    message: str


class Verified(Struct):
    """A line of a proof: a finding, how far it is, why it stopped, or, last, how many findings there are."""

    finding: ShownFinding | UnsetType = UNSET
    progress: Progress | UnsetType = UNSET
    error: Any | UnsetType = UNSET
    findings: int | UnsetType = UNSET


class RunStarted(Struct):
    run_id: str
    status: Literal["started"]
    session_id: str


class Run(Struct):
    object: Literal["hermes.run"]
    run_id: str
    status: Literal["queued", "running", "stopping", "completed", "failed", "cancelled"]
    session_id: str
    model: str
    created_at: float
    updated_at: float
    last_event: str | None
    output: str | None
    error: str | None
    usage: Tokens


class RunStopped(Struct):
    run_id: str
    status: Literal["stopping", "completed", "failed", "cancelled"]


class ListedSession(Struct):
    id: str
    session_id: str
    title: str | None
    preview: str
    source: str
    model: str
    has_system_prompt: bool
    started_at: float
    last_active: float
    ended_at: None
    end_reason: None
    parent_session_id: str | None


class CountedSession(ListedSession):
    message_count: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int


class Session(CountedSession):
    object: Literal["hermes.session"]
    session: CountedSession


class SessionPage(Struct):
    object: Literal["list"]
    data: list[ListedSession]
    limit: int
    offset: int
    has_more: bool


class SessionDeleted(Struct):
    id: str
    object: Literal["hermes.session.deleted"]
    deleted: bool


class SessionMessage(Struct):
    id: str
    timestamp: float
    turn: str
    role: Literal["user", "assistant", "system", "developer", "tool"]
    content: str | None
    tool_calls: list[ChatToolCall] | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET


class SessionMessages(Struct):
    object: Literal["list"]
    session_id: str
    data: list[SessionMessage]
    has_more: bool


class SessionAnswer(Struct):
    role: Literal["assistant"]
    content: str


class SessionCompletion(Struct):
    object: Literal["hermes.session.chat.completion"]
    session_id: str
    run_id: str
    message: SessionAnswer
    usage: Tokens
