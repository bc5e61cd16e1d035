"""CORS: which other sites' pages may read what this gateway answers. Nobody's, unless the configuration names them."""

from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from legato.domain.ids import new_id

READABLE = "X-Request-Id, X-Legato-Conversation, X-Hermes-Session-Id, Idempotency-Replayed, Retry-After"
METHODS = "GET, POST, PUT, PATCH, DELETE"
A_DAY = "86400"


def shared(app: ASGIApp, origins: Iterable[str]) -> ASGIApp:
    """The same application, for pages of these sites, too."""
    known = frozenset(origins)

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        asked = Headers(scope=scope) if scope["type"] == "http" else Headers()
        origin = asked.get("origin", "")
        if origin.lower() not in known:
            await app(scope, receive, send)
        elif scope["method"] == "OPTIONS" and "access-control-request-method" in asked:
            headers = _told(origin, {"Access-Control-Allow-Methods": METHODS, "Access-Control-Max-Age": A_DAY})
            headers["Access-Control-Allow-Headers"] = asked.get("access-control-request-headers", "")
            headers["X-Request-Id"] = new_id("req_")
            await send({"type": "http.response.start", "status": 204, "headers": MutableHeaders(headers).raw})
            await send({"type": "http.response.body"})
        else:
            await app(scope, receive, _telling(origin, send))

    return run


def _telling(origin: str, send: Send) -> Send:
    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(_told(origin, {"Access-Control-Expose-Headers": READABLE}))
        await send(message)

    return tell


def _told(origin: str, more: dict[str, str]) -> dict[str, str]:
    return {"Access-Control-Allow-Origin": origin, "Vary": "Origin", **more}
