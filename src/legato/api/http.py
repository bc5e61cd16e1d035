"""The HTTP application: every route in one table, behind one door."""

from collections.abc import MutableMapping
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Match
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from legato.api import (
    admin,
    care,
    channels,
    chat,
    commands,
    context,
    conversations,
    cors,
    models,
    openapi,
    portable,
    responses,
    runs,
    sessions,
)
from legato.api.door import Api, Route, admit
from legato.api.operations import operations
from legato.api.wire import Endpoint, answer, envelope, guarded, refused
from legato.domain.ids import new_id
from legato.errors import LegatoError

ROUTES: list[tuple[str, str, Route]] = [
    ("POST", "/v1/responses", responses.create),
    ("POST", "/v1/responses/compact", context.compact),
    ("POST", "/v1/responses/input_tokens", context.input_tokens),
    ("GET", "/v1/responses/{id}", responses.retrieve),
    ("DELETE", "/v1/responses/{id}", responses.delete),
    ("POST", "/v1/responses/{id}/cancel", responses.cancel),
    ("GET", "/v1/responses/{id}/input_items", responses.input_items),
    ("GET", "/v1/responses/{id}/context", context.receipt),
    ("POST", "/v1/conversations", conversations.create),
    ("GET", "/v1/conversations", conversations.list_conversations),
    ("GET", "/v1/conversations/{id}", conversations.retrieve),
    ("POST", "/v1/conversations/{id}", conversations.update),
    ("DELETE", "/v1/conversations/{id}", conversations.delete),
    ("POST", "/v1/conversations/{id}/items", conversations.create_items),
    ("GET", "/v1/conversations/{id}/items", conversations.list_items),
    ("GET", "/v1/conversations/{id}/items/{item_id}", conversations.retrieve_item),
    ("DELETE", "/v1/conversations/{id}/items/{item_id}", conversations.delete_item),
    ("GET", "/v1/conversations/{id}/events", conversations.events),
    ("GET", "/v1/conversations/{id}/usage", conversations.usage),
    ("POST", "/v1/conversations/{id}/fork", conversations.fork),
    ("POST", "/v1/conversations/{id}/rewind", conversations.rewind),
    ("POST", "/v1/conversations/{id}/compact", conversations.compact),
    ("POST", "/v1/conversations/{id}/expand", conversations.expand),
    ("PUT", "/v1/conversations/{id}/aliases/{name}", conversations.put_alias),
    ("DELETE", "/v1/conversations/{id}/aliases/{name}", conversations.delete_alias),
    ("GET", "/v1/conversations/{id}/export", portable.export),
    ("GET", "/v1/export", portable.export_all),
    ("POST", "/v1/import", portable.import_lines),
    ("GET", "/v1/trash", conversations.list_deleted),
    ("POST", "/v1/trash/{id}/restore", conversations.restore),
    ("DELETE", "/v1/trash/{id}", conversations.purge),
    ("POST", "/v1/scrub", admin.scrub),
    ("POST", "/v1/chat/completions", chat.create),
    ("POST", "/v1/runs", runs.create),
    ("GET", "/v1/runs/{id}", runs.retrieve),
    ("GET", "/v1/runs/{id}/events", runs.events),
    ("POST", "/v1/runs/{id}/stop", runs.stop),
    ("POST", "/v1/runs/{id}/approval", runs.approval),
    ("GET", "/api/sessions", sessions.list_sessions),
    ("POST", "/api/sessions", sessions.create),
    ("GET", "/api/sessions/{id}", sessions.retrieve),
    ("PATCH", "/api/sessions/{id}", sessions.patch),
    ("DELETE", "/api/sessions/{id}", sessions.delete),
    ("GET", "/api/sessions/{id}/messages", sessions.messages),
    ("POST", "/api/sessions/{id}/fork", sessions.fork),
    ("POST", "/api/sessions/{id}/chat", sessions.chat),
    ("POST", "/api/sessions/{id}/chat/stream", sessions.chat_stream),
    ("GET", "/v1/search", conversations.search),
    ("GET", "/v1/resolve", conversations.resolve),
    ("GET", "/v1/commands", commands.list_commands),
    ("POST", "/v1/commands", commands.run),
    ("POST", "/v1/keys", admin.create_key),
    ("GET", "/v1/keys", admin.list_keys),
    ("DELETE", "/v1/keys/{name}", admin.revoke_key),
    ("POST", "/v1/pairings", channels.confirm_pairing),
    ("GET", "/v1/pairings", channels.list_pairings),
    ("DELETE", "/v1/pairings/{channel}/{sender}", channels.remove_pairing),
    ("GET", "/v1/chats", channels.list_chats),
    ("PUT", "/v1/chats/{account}/{chat}", channels.move_chat),
    ("GET", "/v1/deliveries", channels.list_undelivered),
    ("POST", "/v1/deliveries/{id}/resend", channels.resend),
    ("POST", "/v1/backup", care.backup),
    ("POST", "/v1/verify", care.verify),
    ("GET", "/v1/stats", care.stats),
    ("GET", "/v1/doctor", care.doctor),
    ("POST", "/v1/search/rebuild", care.rebuild_search),
    ("GET", "/v1/models", models.list_models),
    ("GET", "/v1/models/{id:path}", models.retrieve_model),
]
"""Every route that needs a key."""

SLASH = "\udc2f"  # stands for an encoded slash while routes are compared; no text that comes in has it


def build(api: Api) -> ASGIApp:
    """Everything that is served. The operations and the description of the API need no key; everything else does. What
    asks after our health may call us by any name."""
    behind = [(method, path, guarded(_behind(api, route))) for method, path, route in ROUTES]
    served = operations(api.gateway, api.exchange)
    routes = [
        StarletteRoute(path, guarded(served[path]), methods=["GET"]) for path in ("/healthz", "/health", "/readyz")
    ]
    described = openapi.document(ROUTES)
    shown = openapi.page(described)

    async def document(_: Request) -> Response:
        return answer(described)

    async def page(_: Request) -> Response:
        return Response(shown, media_type="text/html")

    routes.append(StarletteRoute("/channels/{name}", guarded(channels.hook(api)), methods=["POST"]))

    async def front(_: Request) -> Response:
        return RedirectResponse("/docs")

    shown_to_all = {"/": front, "/metrics": served["/metrics"], "/openapi.json": document, "/docs": page}
    routes += [
        StarletteRoute(path, guarded(_by_name(api, endpoint)), methods=["GET"])
        for path, endpoint in shown_to_all.items()
    ]
    routes += [_Route(path, endpoint, methods=[method]) for method, path, endpoint in behind]
    plain = {(method, path): endpoint for method, path, endpoint in behind if "{" not in path}
    app = Starlette(routes=routes, exception_handlers={HTTPException: _plain_error})
    app.router.redirect_slashes = False
    quick = _quick(plain, app)
    return cors.shared(quick, api.doorway.origins) if api.doorway.origins else quick


class _Route(StarletteRoute):
    """A route on which a slash that a client encoded belongs to the name that it stands in."""

    def matches(self, scope: MutableMapping[str, Any]) -> tuple[Match, Scope]:
        raw: bytes = scope.get("raw_path", b"")
        if b"%2f" not in raw.lower():
            return super().matches(scope)
        match, found = super().matches({**scope, "path": _in_one_piece(raw)})
        if "path_params" in found:
            named = {name: value.replace(SLASH, "/") for name, value in found["path_params"].items()}
            found = {**found, "path_params": named}
        return match, found


def _in_one_piece(raw: bytes) -> str:
    """A path whose names hold no slash."""
    return "/".join(unquote(name).replace("/", SLASH) for name in raw.decode("latin-1").split("/"))


def _quick(endpoints: dict[tuple[str, str], Endpoint], rest: ASGIApp) -> ASGIApp:
    """Paths without parameters are looked up, not searched for: the routes of every turn are among them."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = endpoints.get((scope.get("method", ""), scope.get("path", "")))
        if endpoint is None:
            await rest(scope, receive, send)
        else:
            response = await endpoint(Request(scope, receive))
            await response(scope, receive, send)

    return app


def _by_name(api: Api, endpoint: Endpoint) -> Endpoint:
    """For everybody who calls us by a name of ours."""

    async def run(request: Request) -> Response:
        api.doorway.check(request.headers)
        return await endpoint(request)

    return run


def _behind(api: Api, route: Route):  # type: ignore[no-untyped-def]  # the type is inferred by `guarded`
    async def endpoint(request: Request) -> Response:
        call = await admit(api, request)
        try:
            response = await route(call)
        except LegatoError as error:
            response = refused(request, error)
        response.headers.update(call.about)
        return response

    return endpoint


async def _plain_error(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, in the same envelope. Who asks for a WebSocket where there is only HTTP is told in the
    word for it, upon which clients that try one first do without."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 405 and "sec-websocket-key" in request.headers:
        status = 426
    code, words = _PLAIN.get(status, ("method_not_allowed", "The request cannot be served."))
    response = envelope(status, "invalid_request_error", code, f"{words} {request.method} {request.url.path}")
    response.headers["x-request-id"] = new_id("req_")
    if status == 405:
        response.headers["allow"] = ", ".join(sorted(_methods(request)))
    if status == 426:
        response.headers.update({"upgrade": "HTTP/1.1", "connection": "Upgrade"})
    return response


_PLAIN = {
    404: ("not_found", "There is no such route."),
    405: ("method_not_allowed", "That method is not allowed here."),
    426: ("upgrade_required", "There is no WebSocket here; send the request by HTTP."),
}


def _methods(request: Request) -> set[str]:
    """What this path can be asked; each of its methods is a route of its own."""
    there = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return {method for route in there for method in route.methods}
