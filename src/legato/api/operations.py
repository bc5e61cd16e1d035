"""Operations: is the process alive, can it work, what has it counted. The only routes that need no key."""

import asyncio

from prometheus_client import generate_latest
from starlette.requests import Request
from starlette.responses import Response

from legato.api.wire import Endpoint, answer
from legato.engine.exchange import Exchange
from legato.engine.gateway import Gateway
from legato.engine.metrics import REGISTRY
from legato.errors import Unavailable

READY_WITHIN = 5.0


def operations(gateway: Gateway, exchange: Exchange) -> dict[str, Endpoint]:
    """The routes, by path."""

    async def healthz(_: Request) -> Response:
        return answer({"status": "ok"})

    async def readyz(_: Request) -> Response:
        try:
            async with asyncio.timeout(READY_WITHIN):
                await gateway.check()
        except Unavailable as error:
            return answer({"status": "unavailable", "code": error.code, "message": error.message}, 503)
        except TimeoutError:
            message = f"The store did not take a write within {READY_WITHIN:.0f} seconds."
            return answer({"status": "unavailable", "code": "store_unavailable", "message": message}, 503)
        channels = {state.name: "up" if state.up else f"down: {state.why}" for state in exchange.states}
        return answer({"status": "ready"} | ({"channels": channels} if channels else {}))

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(REGISTRY), media_type="text/plain; version=0.0.4")

    return {
        "/healthz": healthz,
        "/health": healthz,
        "/readyz": readyz,
        "/metrics": metrics,
    }  # `/health`: as Hermes has it
