"""Administration: keys. Only a key with the scope `admin` may come here; the one of the first start has it."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from starlette.responses import Response

from legato.api.door import Call
from legato.api.submitting import replayed
from legato.api.wire import answer, bearer, matching
from legato.domain.ids import PrincipalId
from legato.errors import Forbidden, NotFound

ADMIN = "admin"
Word = Annotated[str, matching(r"[^\x00-\x1f\x7f]+", least=1, most=100)]
Scope = Literal["admin"]


class CreateKey(Struct):
    """The body of `POST /v1/keys`. Without a principal the key speaks for whoever makes it."""

    name: Word
    principal: Word | None = None
    scopes: Annotated[list[Scope], Meta(max_length=20)] = []


class UnknownKey(NotFound):
    """No key by that name."""

    code = "key_not_found"


async def create_key(call: Call) -> Response:
    """`POST /v1/keys`: the only time that the key itself is told."""
    check_admin(call)
    body = await call.body(CreateKey)
    principal = PrincipalId(body.principal) if body.principal is not None else call.caller.principal
    scopes = frozenset(body.scopes)
    secret = bearer(call.headers)
    key, fresh = await call.gateway.create_key(body.name, principal, scopes, secret=secret, request=call.dedup_key)
    made = {"object": "key", "name": body.name, "principal": principal, "scopes": sorted(scopes), "key": key}
    return answer(made, headers=replayed(not fresh))


async def list_keys(call: Call) -> Response:
    """`GET /v1/keys`: what keys there are, never the keys themselves."""
    check_admin(call)
    return answer({"object": "list", "data": [_shown(key) for key in await call.gateway.keys()]})


async def revoke_key(call: Call) -> Response:
    """`DELETE /v1/keys/{name}`: from now on it opens nothing."""
    check_admin(call)
    name = call.path("name")
    count = await call.gateway.revoke_key(name) if "\0" not in name else 0
    call.api.keys.forget()
    if count == 0:
        raise UnknownKey(f"There is no key named {name!r} that could be revoked.", param="name")
    return answer({"object": "key.revoked", "name": name, "revoked": count})


async def scrub(call: Call) -> Response:
    """`POST /v1/scrub`: write the database's files anew, so that nothing that was purged is left in them."""
    check_admin(call)
    await call.gateway.scrub()
    return answer({"object": "scrubbed"})


def check_admin(call: Call) -> None:
    """Refuse whoever is no administrator."""
    if ADMIN not in call.caller.scopes:
        raise Forbidden("This needs a key with the scope 'admin'.")


def _shown(key: Any) -> dict[str, Any]:
    return {
        "object": "key",
        "name": key.name,
        "principal": key.principal,
        "scopes": sorted(key.scopes),
        "created_at": int(key.created_at),
        "revoked_at": int(key.revoked_at) if key.revoked_at is not None else None,
    }
