"""`/openapi.json` and `/docs`: what is served, made from the same table and types that serve it.

The page fetches nothing from elsewhere.
"""

import inspect
import re
from html import escape
from typing import Any

import msgspec

from legato import __version__
from legato.api import chat, conversations, responses, runs, sessions
from legato.api.door import Route

BODIES: dict[Route, type] = {
    responses.create: responses.CreateResponse,
    conversations.create: conversations.CreateConversation,
    conversations.update: conversations.UpdateConversation,
    conversations.create_items: conversations.CreateItems,
    conversations.fork: conversations.Position,
    conversations.rewind: conversations.Position,
    conversations.expand: conversations.Position,
    conversations.compact: conversations.CompactConversation,
    chat.create: chat.CreateChat,
    runs.create: runs.CreateRun,
    sessions.create: sessions.CreateSession,
    sessions.patch: sessions.PatchSession,
    sessions.fork: sessions.ForkSession,
    sessions.chat: sessions.SessionChat,
    sessions.chat_stream: sessions.SessionChat,
}
OPTIONAL_BODIES = {conversations.create, conversations.fork, sessions.create, sessions.fork}
STREAMS = {runs.events, sessions.chat_stream, conversations.events}
EITHER = {responses.create, responses.retrieve, chat.create}

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


def document(routes: list[tuple[str, str, Route]]) -> dict[str, Any]:
    """The OpenAPI document of these routes."""
    schemas, components = msgspec.json.schema_components(BODIES.values(), ref_template="#/components/schemas/{name}")
    by_body = dict(zip(BODIES, schemas, strict=True))
    paths: dict[str, Any] = {}
    for method, path, route in routes:
        plain = _PARAMETER.sub(r"{\1}", path)
        paths.setdefault(plain, {})[method.lower()] = _operation(path, route, by_body.get(route))
    return {
        "openapi": "3.1.0",
        "info": {"title": "Legato", "version": __version__, "description": "A conversation never loses its thread."},
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(path: str, route: Route, body: dict[str, Any] | None) -> dict[str, Any]:
    module = route.__module__.rsplit(".", 1)[-1]
    kinds = ["text/event-stream"] if route in STREAMS else ["application/json"]
    if route in EITHER:
        kinds.append("text/event-stream")
    if route is conversations.export:
        kinds = ["application/jsonl"]
    content: dict[str, Any] = {
        kind: {"schema": {"type": "object"} if kind == "application/json" else {"type": "string"}} for kind in kinds
    }
    good = {"description": "Done.", "content": content}
    operation: dict[str, Any] = {
        "tags": [module],
        "operationId": f"{module}_{route.__name__}",
        "summary": (inspect.getdoc(route) or "").split("`: ")[-1].strip("`."),
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in _PARAMETER.findall(path)
        ],
        "responses": {
            "2XX": good,
            "4XX": {
                "description": "Refused; the error says why.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
            "5XX": {
                "description": "Something the gateway depends on does not answer.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    }
    if body is not None:
        required = route not in OPTIONAL_BODIES
        operation["requestBody"] = {"required": required, "content": {"application/json": {"schema": body}}}
    return operation


def page(described: dict[str, Any]) -> str:
    """The document for people, as one page."""
    rows: dict[str, list[str]] = {}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            rows.setdefault(operation["tags"][0], []).append(
                f"<tr><td class=m>{method.upper()}</td><td><code>{escape(path)}</code></td>"
                f"<td>{_fields(described, body) if body else ''}</td></tr>"
            )
    sections = "".join(f"<h2>{escape(tag.title())}</h2><table>{''.join(lines)}</table>" for tag, lines in rows.items())
    return _PAGE.replace("{sections}", sections).replace("{version}", __version__)


def _fields(described: dict[str, Any], schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        schema = described["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]]
    required = set(schema.get("required", ()))
    names = [f"<b>{escape(n)}</b>" if n in required else escape(n) for n in schema.get("properties", {})]
    return "<span class=f>" + " · ".join(names) + "</span>"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Legato API</title>
<style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-weight: 600; } h2 { margin-top: 2rem; font-size: 1.1rem; }
table { border-collapse: collapse; width: 100%; }
td { border-top: 1px solid #8884; padding: .35rem .6rem .35rem 0; vertical-align: top; }
td.m { width: 4.5rem; font-weight: 600; } code { font-size: .92em; } .f { color: #888; font-size: .9em; }
</style></head><body>
<h1>Legato API <small>{version}</small></h1>
<p>Send <code>Authorization: Bearer KEY</code> with every request. Any OpenAI client works with its base URL set to
<code>/v1</code> here. The machine-readable document is <a href="/openapi.json">/openapi.json</a>.</p>
{sections}
</body></html>
"""
