"""What every route shares: the key that opens it, the envelope of errors, the id of a request.

Errors of the domain become HTTP here and nowhere else, in the envelope that OpenAI clients read.
"""

import math
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from legato.domain.ids import PrincipalId, new_id
from legato.domain.turns import Failure
from legato.errors import (
    BadInput,
    Conflict,
    ContextTooLarge,
    Forbidden,
    Invalid,
    LegatoError,
    LimitReached,
    ModelUnavailable,
    NotFound,
    RateLimited,
    Refused,
    TurnFailed,
    Unauthenticated,
    Unavailable,
)
from legato.logs import bound, logger

T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]

LONGEST_MESSAGE = 500
ROOM = 400  # levels of JSON
_PLACE = re.compile(r" - at (?:`key` in )?`\$\.?(.*)`\Z")
_LONE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
_MISSING = re.compile(r"Object missing required field `(.*?)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`\Z", re.DOTALL)


def matching(pattern: str, *, least: int | None = None, most: int | None = None) -> msgspec.Meta:
    """A text that is all as the pattern says. Python's `$` would let a newline follow; in the document, which others
    read, it is the end."""
    shown = {"pattern": f"^{pattern}$"}
    return msgspec.Meta(pattern=rf"^{pattern}\Z", min_length=least, max_length=most, extra_json_schema=shown)


class TooLarge(LimitReached):
    """The body is too large."""

    code = "request_too_large"


_STATUS: list[tuple[type[LegatoError], int, str]] = [
    (Unauthenticated, 401, "authentication_error"),
    (Forbidden, 403, "permission_error"),
    (TooLarge, 413, "invalid_request_error"),
    (LimitReached, 429, "rate_limit_error"),
    (Refused, 403, "permission_error"),
    (NotFound, 404, "invalid_request_error"),
    (Conflict, 409, "invalid_request_error"),
    (Invalid, 400, "invalid_request_error"),
    (Unavailable, 503, "server_error"),
]


_FAILED: dict[str, tuple[int, str]] = {
    BadInput.code: (400, "invalid_request_error"),
    ContextTooLarge.code: (400, "invalid_request_error"),
    RateLimited.code: (429, "rate_limit_error"),
}
"""Failures of turns that clients know: what the provider will not take from them, however often they ask, and that it
was asked too often. The others are faults of the server."""


def answer(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(msgspec.json.encode(body), status, headers, "application/json")


def refusal(error: LegatoError) -> Response:
    """An error in the envelope."""
    status, kind = next(((s, k) for t, s, k in _STATUS if isinstance(error, t)), (500, "server_error"))
    if isinstance(error, TurnFailed):
        status, kind = failed(error.code)
    told = envelope(status, kind, error.code, error.message, error.param)
    if isinstance(error, ModelUnavailable) and error.retry_after is not None:
        told.headers["Retry-After"] = str(math.ceil(error.retry_after))
    return told


def turn_failed(failure: Failure) -> TurnFailed:
    """A turn that did not answer, as an error."""
    return TurnFailed(failure.code, failure.message, failure.retry_after)


def failed(code: str) -> tuple[int, str]:
    """The status, and the kind of error, of a turn that failed with this code."""
    return _FAILED.get(code, (503, "server_error"))


def envelope(status: int, kind: str, code: str, message: str, param: str | None = None) -> Response:
    """What a client sent may be told back to it, but not at length. A body that nobody reads ends its connection."""
    told = message if len(message) <= LONGEST_MESSAGE else message[:LONGEST_MESSAGE] + "…"
    body = {"error": {"message": told, "type": kind, "param": param, "code": code}}
    return answer(body, status, {"Connection": "close"} if status == 413 else None)


def guarded(endpoint: Endpoint) -> Endpoint:
    """The top of HTTP: every answer has a request id, every failure is an envelope, none is silent."""

    async def run(request: Request) -> Response:
        request_id = new_id("req_")
        with bound(request=request_id):
            try:
                response = await endpoint(request)
            except LegatoError as error:
                response = refused(request, error)
            except Exception:
                logger.exception("request failed", path=request.url.path)
                response = envelope(500, "server_error", "internal_error", "Unexpected failure; see the gateway's log.")
        response.headers["x-request-id"] = request_id
        return response if request.method != "HEAD" else _head_of(response)

    return run


def refused(request: Request, error: LegatoError) -> Response:
    """An error in the envelope; one that is not the client's fault is in the log, too."""
    response = refusal(error)
    if response.status_code >= 500:
        logger.error("refused", path=request.url.path, code=error.code, error=error.message)
    return response


def _head_of(response: Response) -> Response:
    """What HEAD gets: the same without a body, at once, however long the telling of it would take."""
    head = Response(status_code=response.status_code)
    head.raw_headers = response.raw_headers
    return head


class MissingParameter(BadInput):
    """A parameter is missing."""

    code = "missing_required_parameter"

    @classmethod
    def named(cls, param: str) -> "MissingParameter":
        return cls(f"Missing required parameter: '{param}'.", param=param)


def bearer(headers: Mapping[str, str]) -> str:
    """The key that a request carries."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise Unauthenticated()
    return key.strip()


async def read_body(request: Request, limit: int) -> bytes:
    """The body, if it is not too large."""
    data = bytearray()
    try:
        async for chunk in request.stream():
            data += chunk
            if len(data) > limit:
                raise TooLarge(f"The body is larger than {limit} bytes.")
    except ClientDisconnect as error:
        raise BadInput("The client left before it had sent the whole body.") from error
    return bytes(data)


def decode_body(data: bytes, kind: type[T]) -> T:
    """A JSON body as a value; what does not fit is named. What was read is written again, to the log and into answers,
    where it stands deeper and where less depth is left: one that leaves no room for that is too deep."""
    try:
        value = msgspec.json.decode(data, type=kind)
        if data.count(b"[") + data.count(b"{") > ROOM:
            msgspec.json.decode(b"[" * ROOM + data + b"]" * ROOM, type=msgspec.Raw)
        return value
    except msgspec.ValidationError as error:
        raise misfit(error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(_unreadable(data, error)) from error


def _unreadable(data: bytes, error: Exception) -> str:
    if not data.strip():
        return "The body is empty; it must be a JSON object."
    why = "a text holds half a character (a lone surrogate)" if _LONE.search(data) else error
    return f"The body is not valid JSON: {why}"


def misfit(error: msgspec.ValidationError, within: str = "") -> BadInput:
    """What does not fit, and where: the path of the value, or of the one that is missing or unknown."""
    message = _PLACE.sub("", str(error))
    found = _PLACE.search(str(error))
    place = ".".join(part for part in (within, found[1].removesuffix("[...]") if found else "") if part)
    if missing := _MISSING.match(message):
        return MissingParameter.named(f"{place}.{missing[1]}" if place else missing[1])
    if unknown := _UNKNOWN.match(message):
        place = f"{place}.{unknown[1]}" if place else unknown[1]
        message = f"Unknown parameter: '{place}'."
    elif place:  # said in words, too: there are clients that show nothing else
        message = f"Invalid value for '{place}': {message[:1].lower()}{message[1:]}."
    return BadInput(message, param=place or None)


def data_line(body: Any) -> bytes:
    """A server-sent event without a name."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def named_event(name: str, body: Any) -> bytes:
    """A server-sent event with a name."""
    return b"event: " + name.encode() + b"\n" + data_line(body)


class Caller(msgspec.Struct, frozen=True):
    """Who makes a request."""

    principal: PrincipalId
    scopes: frozenset[str]
