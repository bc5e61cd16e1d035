"""The HTTP application: routes, and the door in front of them."""

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from legato.api.operations import operations
from legato.api.responses import create_response
from legato.api.wire import Caller, Endpoint, bearer, envelope, guarded
from legato.engine.gateway import Gateway
from legato.errors import Unauthenticated

KeyCheck = Callable[[str], Awaitable[Caller | None]]


def build(gateway: Gateway, check_key: KeyCheck, max_body: int) -> Starlette:
    """Everything that is served. Each route but the operations needs a key."""

    async def responses(request: Request) -> Response:
        caller = await check_key(bearer(request))
        if caller is None:
            raise Unauthenticated("That API key is not known here, or was revoked.")
        return await create_response(request, caller, gateway, max_body)

    routes = [_route(path, "GET", endpoint) for path, endpoint in operations(gateway).items()]
    routes.append(_route("/v1/responses", "POST", responses))
    return Starlette(routes=routes, exception_handlers={HTTPException: _plain_error})


def _route(path: str, method: str, endpoint: Endpoint) -> Route:
    return Route(path, guarded(endpoint), methods=[method])


async def _plain_error(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, in the same envelope."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    words = {404: "There is no such route.", 405: "That method is not allowed here."}
    message = f"{words.get(status, 'The request cannot be served.')} {request.method} {request.url.path}"
    return envelope(status, "invalid_request_error", "not_found" if status == 404 else "method_not_allowed", message)
