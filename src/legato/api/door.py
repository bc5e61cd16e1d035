"""The door: what every route of the API has in common before it does anything of its own.

A key says who is calling. A browser's foreign page is refused, and so is a name that is not ours, by which such a page
could pass for one of our own: names of loopback, the address that is listened on and those of the configuration are
ours. Outside loopback so is every bare address: whoever is reached by one was looked up under no name; and while no
names are configured there, a program (and no browser) may call us as it likes: in a network of containers every service
has a name. Headers that name a conversation, a policy or an idempotency key are read here, once, for all routes that
take them.
"""

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TypeVar, get_args
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from legato.api.keys import RecentKeys
from legato.api.wire import Caller, bearer, decode_body, read_body
from legato.domain.handles import ById, External, parse_external
from legato.domain.ids import ConversationId
from legato.domain.turns import Busy, Dedup
from legato.engine.care import Care
from legato.engine.exchange import Exchange
from legato.engine.gateway import Gateway
from legato.engine.roster import Roster
from legato.errors import BadInput, Forbidden, Unauthenticated

T = TypeVar("T")

SESSION_HEADERS = ("x-hermes-session-id", "x-legato-conversation")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class Doorway(Struct, frozen=True):
    """Under which names the gateway is reached, and from which sites besides its own pages."""

    names: frozenset[str]
    origins: frozenset[str]
    loopback: bool
    strict: bool  # whoever asks; else only a browser, which a foreign page could have sent

    @classmethod
    def of(cls, listens: str, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> "Doorway":
        """For an address to listen on, with the names and sites that are configured."""
        address = _address(listens)
        loopback = listens in _LOOPBACK or (address is not None and address.is_loopback)
        named = {_parts(f"//{host}").hostname or "" for host in hosts}
        sites = frozenset(_site(origin) for origin in origins)
        return cls(frozenset({*_LOOPBACK, listens.lower(), *named} - {""}), sites, loopback, loopback or bool(named))

    def check(self, headers: Mapping[str, str]) -> None:
        """A page of another site may not speak for the user, nor reach us under another name."""
        host = headers.get("host", "")
        name = _parts(f"//{host}").hostname or ""
        known = name in self.names or (not self.loopback and _address(name) is not None)
        if not known and (self.strict or "origin" in headers or "sec-fetch-site" in headers):
            raise Forbidden(f"This gateway is not known as {host!r}; 'server.hosts' names what it is known as.")
        origin = headers.get("origin")
        if origin is not None and _parts(origin).netloc != host and origin.lower() not in self.origins:
            raise Forbidden(f"Requests from {origin!r} are not allowed; 'server.origins' names what is.")


class Api(Struct, frozen=True):
    """What the routes stand on."""

    gateway: Gateway
    care: Care
    roster: Roster
    exchange: Exchange
    keys: RecentKeys
    max_body: int
    doorway: Doorway


class Call:
    """One request, by someone who is known."""

    def __init__(self, api: Api, request: Request, headers: dict[str, str], caller: Caller) -> None:
        self.api, self.request, self.headers, self.caller = api, request, headers, caller
        self.raw = b""
        self.place: dict[str, str] = {}  # headers that say what this request is about, once that is known

    def is_about(self, conversation_id: ConversationId, **more: str) -> None:
        """From here on every answer, a refusal too, says which conversation it is about."""
        self.place = {"X-Legato-Conversation": conversation_id, **more}

    @property
    def gateway(self) -> Gateway:
        return self.api.gateway

    async def body(self, kind: type[T]) -> T:
        """The JSON body as a value."""
        await self.has_body()
        return decode_body(self.raw, kind)

    async def has_body(self) -> bool:
        """Whether anything was sent; some bodies may be left out."""
        if not self.raw:
            self.raw = await read_body(self.request, self.api.max_body)
        return bool(self.raw)

    def path(self, name: str) -> str:
        return str(self.request.path_params[name])

    def query(self, name: str) -> str | None:
        value = self.request.query_params.get(name)
        if value is not None and "\0" in value:
            raise BadInput(f"'{name}' may not contain a NUL character.", param=name)
        return value

    def limit(self, default: int = 20, most: int = 100) -> int:
        """How many the client wants to see."""
        return self.number("limit", default, least=1, most=most)

    def number(self, name: str, default: int, *, least: int, most: int) -> int:
        text = self.query(name)
        if text is None:
            return default
        number = whole(text)
        if number is None or not least <= number <= most:
            raise BadInput(f"'{name}' must be a whole number from {least} to {most}.", param=name)
        return number

    def flag(self, name: str) -> bool:
        text = self.query(name)
        if text is None:
            return False
        if text.lower() not in ("true", "false", "1", "0"):
            raise BadInput(f"'{name}' must be true or false.", param=name)
        return text.lower() in ("true", "1")

    @property
    def sessions(self) -> list[ById | External]:
        """The names of conversations in the headers."""
        given = {name: value for name in SESSION_HEADERS if (value := self._header(name)) is not None}
        return [parse_external(value, param=name) for name, value in given.items()]

    @property
    def session_echo(self) -> dict[str, str]:
        """The session header as it was sent."""
        value = self.headers.get(SESSION_HEADERS[0])
        return {"X-Hermes-Session-Id": value} if value is not None else {}

    @property
    def about(self) -> dict[str, str]:
        """What every answer says of the conversation; a session header that is none is not repeated."""
        with suppress(BadInput):
            if self.sessions:
                return {**self.session_echo, **self.place}
        return self.place

    @property
    def busy(self) -> Busy:
        value = self.headers.get("x-legato-busy", "queue").lower()
        for policy in get_args(Busy):
            if value == policy:
                return policy  # type: ignore[no-any-return]  # get_args of a Literal
        raise BadInput(f"X-Legato-Busy must be one of {', '.join(get_args(Busy))}.", param="X-Legato-Busy")

    @property
    def dedup_key(self) -> str | None:
        """The idempotency key, within this route."""
        key = self.headers.get("idempotency-key")
        if key is None:
            return None
        if not 1 <= len(key) <= 255:
            raise BadInput("Idempotency-Key must be 1 to 255 characters.", param="Idempotency-Key")
        return f"{self.request.method} {self.request.scope['path']} {key}"

    @property
    def dedup(self) -> Dedup | None:
        """The same with the hash of what was asked for, once the body is read."""
        return Dedup(self.dedup_key, self.request_hash) if self.dedup_key is not None else None

    @property
    def is_retry(self) -> bool:
        """Whether a client library says that it sends this again by itself."""
        return bool(whole(self.headers.get("x-stainless-retry-count", "0")))

    @property
    def request_hash(self) -> str:
        """What makes two requests the same: their path, their body, and the conversation that a header names."""
        named = [(self._header(header) or "").encode() for header in SESSION_HEADERS]
        digest = hashlib.sha256()
        for data in [self.request.scope["path"].encode(), self.raw, *named]:
            digest.update(len(data).to_bytes(8, "big") + data)
        return digest.hexdigest()

    def _header(self, name: str) -> str | None:
        """A header's value; what was sent as UTF-8 is read as UTF-8."""
        value = self.headers.get(name)
        if value is None:
            return None
        try:
            return value.encode("latin-1").decode()
        except UnicodeDecodeError as error:
            raise BadInput(f"{name} is not valid UTF-8.", param=name) from error


Route = Callable[[Call], Awaitable[Response]]


def whole(text: str) -> int | None:
    """A whole number of at most 16 digits, in ASCII."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 16 else None


async def admit(api: Api, request: Request) -> Call:
    """Let a request in, or say why not."""
    # looked up a dozen times, so decoded once; of a header that came twice the first counts; blanks are no part of one
    given = reversed(request.scope["headers"])
    headers = {name.decode("latin-1"): value.strip(b" \t").decode("latin-1") for name, value in given}
    api.doorway.check(headers)
    caller = await api.keys(bearer(headers))
    if caller is None:
        raise Unauthenticated("That API key is not known here, or was revoked.")
    return Call(api, request, headers, caller)


def _site(origin: str) -> str:
    """An origin as browsers write it."""
    site = origin.lower().rstrip("/")
    return site.removesuffix({"https": ":443", "http": ":80"}.get(site.partition(":")[0], ""))


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None


def _parts(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise Forbidden(f"{url!r} is no address.") from error
