"""Models: who can answer. Agents and models share one list, because a request may name either."""

from typing import Any

from starlette.responses import Response

from legato.api.door import Call
from legato.api.wire import answer
from legato.errors import UnknownModel


async def list_models(call: Call) -> Response:
    """`GET /v1/models`: who can answer: agents and models."""
    return answer({"object": "list", "data": [_shown(call, name) for name in call.api.roster.names]})


async def retrieve_model(call: Call) -> Response:
    """`GET /v1/models/{id}`: one of them; all, where none is named behind the slash."""
    if call.request.scope["path"] == "/v1/models/":
        return await list_models(call)
    name = call.path("id")
    if name not in call.api.roster.names:
        raise UnknownModel(f"The model '{name}' does not exist.", param="model")
    return answer(_shown(call, name))


def _shown(call: Call, name: str) -> dict[str, Any]:
    window = call.api.roster.known_window(name)
    return {"id": name, "object": "model", "created": 1767225600, "owned_by": "legato", "context_window": window}
