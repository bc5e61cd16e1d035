"""`/openapi.json` and `/docs`: what is served, made from the same table and types that serve it.

The page fetches nothing from elsewhere.
"""

import inspect
import re
from html import escape
from typing import Any, NamedTuple

import msgspec

from legato import __version__
from legato.api import (
    admin,
    care,
    channels,
    chat,
    commands,
    context,
    conversations,
    create_chat,
    create_response,
    items,
    models,
    portable,
    responses,
    runs,
    schemas,
    sessions,
)
from legato.api.door import Route

SSE, JSONL, SQLITE = "text/event-stream", "application/jsonl", "application/vnd.sqlite3"


class Shape(NamedTuple):
    """What a route takes (a JSON value, or `lines` of text), and what it answers: a JSON value, line by line (`told`)
    where it does that, and what it can be asked for `otherwise`."""

    answer: Any = None
    body: type | None = None
    query: type | None = None
    headers: type | None = None
    told: str | None = None
    otherwise: tuple[str, ...] = ()
    lines: bool = False
    line: type | None = None
    status: int = 200
    body_optional: bool = False
    of_turn: bool = False


def _turn(answer: Any, body: type | None, headers: type, **more: Any) -> Shape:
    return Shape(answer, body, headers=headers, of_turn=True, **more)


def _once(answer: Any, body: type, **more: Any) -> Shape:
    return Shape(answer, body, headers=schemas.OnceHeader, **more)


SHAPES: dict[Route, Shape] = {
    responses.create: _turn(schemas.Response, create_response.CreateResponse, schemas.SessionHeaders, told=SSE),
    responses.retrieve: Shape(
        schemas.Response, query=schemas.Following, headers=schemas.LastSeen, told=SSE, of_turn=True
    ),
    responses.delete: Shape(schemas.ResponseDeleted),
    responses.cancel: Shape(schemas.Response, of_turn=True),
    responses.input_items: Shape(schemas.ItemPage, query=schemas.ItemPaging),
    context.input_tokens: Shape(schemas.InputTokens, context.MeasureResponse),
    context.compact: Shape(schemas.CompactedResponse, context.CompactResponse),
    context.receipt: Shape(schemas.Receipt, of_turn=True),
    conversations.create: _once(schemas.Conversation, conversations.CreateConversation, body_optional=True),
    conversations.list_conversations: Shape(schemas.ConversationPage, query=schemas.ConversationPaging),
    conversations.retrieve: Shape(schemas.Conversation),
    conversations.usage: Shape(schemas.ConversationUsage),
    conversations.update: _once(schemas.Conversation, conversations.UpdateConversation),
    conversations.delete: Shape(schemas.ConversationDeleted),
    conversations.create_items: _once(schemas.ItemPage, conversations.CreateItems),
    conversations.list_items: Shape(schemas.ItemPage, query=schemas.ItemPaging),
    conversations.retrieve_item: Shape(schemas.Item),
    conversations.delete_item: Shape(schemas.Conversation),
    conversations.events: Shape(headers=schemas.LastSeen, told=SSE, of_turn=True),
    conversations.fork: _once(schemas.Conversation, conversations.ForkConversation, body_optional=True),
    conversations.rewind: _once(schemas.Conversation, conversations.RewindConversation),
    conversations.compact: _once(schemas.Conversation, conversations.CompactConversation, body_optional=True),
    conversations.expand: _once(schemas.Conversation, conversations.ExpandCompaction, body_optional=True),
    conversations.put_alias: Shape(schemas.AliasedConversation),
    conversations.delete_alias: Shape(schemas.Conversation),
    portable.export: Shape(query=schemas.Exporting, told=JSONL, otherwise=("text/markdown", "text/html")),
    portable.export_all: Shape(told=JSONL),
    portable.import_lines: Shape(schemas.ImportReport, lines=True),
    conversations.list_deleted: Shape(schemas.Trash, query=schemas.TrashPaging),
    conversations.restore: Shape(schemas.RestoredConversation, headers=schemas.OnceHeader),
    conversations.purge: Shape(schemas.ConversationPurged),
    admin.scrub: Shape(schemas.Scrubbed),
    chat.create: _turn(schemas.ChatCompletion, create_chat.CreateChat, schemas.SessionHeaders, told=SSE),
    runs.create: _turn(schemas.RunStarted, runs.CreateRun, schemas.SessionHeaders, status=202),
    runs.retrieve: Shape(schemas.Run, of_turn=True),
    runs.events: Shape(told=SSE, of_turn=True),
    runs.stop: Shape(schemas.RunStopped, of_turn=True),
    runs.approval: Shape(),
    sessions.list_sessions: Shape(schemas.SessionPage, query=schemas.SessionPaging),
    sessions.create: _once(schemas.Session, sessions.CreateSession, status=201, body_optional=True),
    sessions.retrieve: Shape(schemas.Session),
    sessions.patch: Shape(schemas.Session, sessions.PatchSession),
    sessions.delete: Shape(schemas.SessionDeleted),
    sessions.messages: Shape(schemas.SessionMessages, query=schemas.MessagePaging),
    sessions.fork: _once(schemas.Session, sessions.ForkSession, status=201, body_optional=True),
    sessions.chat: _turn(schemas.SessionCompletion, sessions.SessionChat, schemas.TurnHeaders),
    sessions.chat_stream: _turn(None, sessions.SessionChat, schemas.TurnHeaders, told=SSE),
    conversations.search: Shape(schemas.SearchHits, query=schemas.Searching),
    conversations.resolve: Shape(schemas.Resolved, query=schemas.Resolving),
    commands.list_commands: Shape(schemas.CommandList),
    commands.run: _once(schemas.CommandReply, commands.RunCommand),
    admin.create_key: _once(schemas.NewKey, admin.CreateKey),
    admin.list_keys: Shape(schemas.KeyList),
    admin.revoke_key: Shape(schemas.KeyRevoked),
    channels.confirm_pairing: Shape(schemas.Pairing, channels.ConfirmPairing),
    channels.list_pairings: Shape(schemas.PairingList),
    channels.remove_pairing: Shape(schemas.PairingRemoved),
    channels.list_chats: Shape(schemas.ChatList),
    channels.move_chat: Shape(schemas.Chat, channels.MoveChat),
    channels.list_undelivered: Shape(schemas.Undelivered, query=schemas.Limited),
    channels.resend: Shape(schemas.Resent),
    care.backup: Shape(told=SQLITE),
    care.verify: Shape(told=JSONL, line=schemas.Verified),
    care.stats: Shape(schemas.Stats),
    care.doctor: Shape(schemas.Diagnosis),
    care.rebuild_search: Shape(schemas.SearchRebuilt),
    models.list_models: Shape(schemas.ModelList),
    models.retrieve_model: Shape(schemas.Model),
}
"""Every route; one that is missing here keeps the gateway from starting."""

UNIONS: dict[str, tuple[type, ...]] = {
    "GivenItem": items.ITEMS,
    "GivenPart": items.PARTS,
    "GivenTool": create_response.TOOLS,
    "GivenChoice": create_response.CHOICES,
    "ChatPart": create_chat.PARTS,
    "ChatToolChoice": create_chat.CHOICES,
    "ChatFormat": create_chat.FORMATS,
}
LINES: dict[str, type] = {SSE: schemas.Event, JSONL: schemas.Line}
REFUSED = {"4XX": "Refused; the error says why.", "5XX": "Something the gateway depends on does not answer."}

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


def document(routes: list[tuple[str, str, Route]]) -> dict[str, Any]:
    """The OpenAPI document of these routes."""
    shapes = [SHAPES[route] for _, _, route in routes]
    kinds = [kind for shape in shapes for kind in (shape.body, shape.answer) if kind is not None]
    kinds += [shape.line for shape in shapes if shape.line is not None]
    kinds += [schemas.Error, *LINES.values(), *(kind for union in UNIONS.values() for kind in union)]
    found, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    described = dict(zip(kinds, found, strict=True))
    components |= {name: {"anyOf": [described[kind] for kind in union]} for name, union in UNIONS.items()}
    paths: dict[str, Any] = {}
    for method, path, route in routes:
        plain = _PARAMETER.sub(r"{\1}", path)
        paths.setdefault(plain, {})[method.lower()] = _operation(path, route, described)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Legato", "version": __version__, "description": "A conversation never loses its thread."},
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(path: str, route: Route, described: dict[Any, Any]) -> dict[str, Any]:
    shape = SHAPES[route]
    module = route.__module__.rsplit(".", 1)[-1]
    names = _PARAMETER.findall(path)
    operation: dict[str, Any] = {
        "tags": [module],
        "operationId": f"{module}_{route.__name__}",
        "summary": _summary(route),
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names),
            *_parameters(shape.query, "query"),
            *_parameters(shape.headers, "header"),
        ],
        "responses": _responses(shape, described),
    }
    if shape.body is not None:
        content = {"application/json": {"schema": described[shape.body]}}
        operation["requestBody"] = {"required": not shape.body_optional, "content": content}
    if shape.lines:
        content = {"text/plain": {"schema": {"type": "string"}}}
        operation["requestBody"] = {"required": True, "content": content, "description": "JSON lines"}
    return operation


def _summary(route: Route) -> str:
    """What the docstring says of a route, behind its method and path."""
    said = " ".join((inspect.getdoc(route) or "").split()).partition("`: ")[2].removesuffix(".")
    return said[:1].upper() + said[1:]


def _parameters(kind: type | None, place: str) -> list[dict[str, Any]]:
    """The fields of a type as parameters."""
    if kind is None:
        return []
    described = msgspec.json.schema(kind)["$defs"][kind.__name__]
    required = described.get("required", ())
    return [
        {"name": name, "in": place, "schema": schema} | ({"required": True} if name in required else {})
        for name, schema in described["properties"].items()
    ]


def _responses(shape: Shape, described: dict[Any, Any]) -> dict[str, Any]:
    headers = {"X-Request-Id": _TOLD_ALWAYS}
    content = {}
    if shape.answer is not None:
        content["application/json"] = {"schema": described[shape.answer]}
    if shape.told is not None:
        line = shape.line or LINES.get(shape.told)
        content[shape.told] = {"x-line-schema": described[line]} if line else {}  # 3.1 has no word for a stream
    content |= {media_type: {"schema": {"type": "string"}} for media_type in shape.otherwise}
    refused = {"application/json": {"schema": described[schemas.Error]}}
    told = {code: {"description": why, "headers": headers, "content": refused} for code, why in REFUSED.items()}
    if not content:
        return told
    if shape.of_turn:
        headers = headers | {"X-Legato-Conversation": _TOLD_ALWAYS}
    return {str(shape.status): {"description": "Done.", "headers": headers, "content": content}, **told}


_TOLD_ALWAYS = {"required": True, "schema": {"type": "string"}}


def page(described: dict[str, Any]) -> str:
    """The document for people, as one page."""
    rows: dict[str, list[str]] = {}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            said = _CODE.sub(r"<code>\1</code>", escape(operation["summary"]))
            rows.setdefault(operation["tags"][0], []).append(
                f"<tr><td class=m>{method.upper()}</td><td class=p><code>{escape(path)}</code></td>"
                f"<td>{said}.{_taken(described, operation)}</td></tr>"
            )
    sections = "".join(f"<h2>{escape(tag.title())}</h2><table>{''.join(lines)}</table>" for tag, lines in rows.items())
    return _PAGE.replace("{sections}", sections).replace("{version}", __version__)


def _taken(described: dict[str, Any], operation: dict[str, Any]) -> str:
    """The names of what can be sent, by where it goes; what must be is bold."""
    places = {place: [p for p in operation["parameters"] if p["in"] == place] for place in ("query", "header")}
    names = {place: [_name(p["name"], "required" in p) for p in found] for place, found in places.items()}
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    if "$ref" in schema:
        schema = described["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]]
    names["body"] = [_name(name, name in schema.get("required", ())) for name in schema.get("properties", {})]
    return "".join(f"<div class=f>{place}: {' · '.join(given)}</div>" for place, given in names.items() if given)


def _name(name: str, required: bool) -> str:
    return f"<b>{escape(name)}</b>" if required else escape(name)


_CODE = re.compile("`(.*?)`")
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Legato API</title>
<style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-weight: 600; } h2 { margin-top: 2rem; font-size: 1.1rem; }
table { border-collapse: collapse; table-layout: fixed; width: 100%; }
tr { border-top: 1px solid #8884; } td { padding: .35rem .6rem .35rem 0; vertical-align: top; }
td.m { width: 4.5rem; font-weight: 600; } td.p { width: 23rem; overflow-wrap: anywhere; }
code { font-size: .92em; } .f { color: #777; font-size: .9em; overflow-wrap: anywhere; }
@media (max-width: 50rem) { td, td.p { display: block; width: auto; padding: .1rem 0; } }
</style></head><body>
<h1>Legato API <small>{version}</small></h1>
<p>Send <code>Authorization: Bearer KEY</code> with every request. Any OpenAI client works with its base URL set to
<code>/v1</code> here. <code>/healthz</code>, <code>/readyz</code> and <code>/metrics</code> need no key. The
machine-readable document is <a href="/openapi.json">/openapi.json</a>.</p>
{sections}
</body></html>
"""
