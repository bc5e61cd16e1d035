"""A running Ollama is found without a file: its models answer over its Chat Completions route.

It is asked once, at the start, where no other model is configured; whoever does not run one waits for nothing.
"""

import asyncio

import msgspec
from msgspec import Struct

from legato.config import ModelConfig
from legato.errors import BadConfig
from legato.outgoing import Server

WITHIN = 0.5  # seconds
MAX_TAGS = 4 * 1024 * 1024


class _Model(Struct):
    name: str


class _Tags(Struct):
    models: list[_Model]


async def find(url: str) -> dict[str, ModelConfig]:
    """The models of the Ollama at this address, by their names; none where there is none."""
    if not url:
        return {}
    try:
        server = Server(url)
        async with asyncio.timeout(WITHIN), server.ask("GET", "/api/tags") as answer:
            tags = msgspec.json.decode(await answer.text(MAX_TAGS), type=_Tags)
    except (OSError, BadConfig, msgspec.MsgspecError):
        return {}  # most people run none
    server.close()
    return {
        model.name: ModelConfig(kind="openai-chat", base_url=f"{url.rstrip('/')}/v1", model=model.name)
        for model in tags.models
    }
