"""A running Ollama is found without a file: its models answer over its Chat Completions route.

It is asked once, at the start, where no other model is configured; whoever does not run one waits for nothing.
"""

import aiohttp
import msgspec
from msgspec import Struct

from legato.config import ModelConfig

WITHIN = 0.5  # seconds


class _Model(Struct):
    name: str


class _Tags(Struct):
    models: list[_Model]


async def find(url: str) -> dict[str, ModelConfig]:
    """The models of the Ollama at this address, by their names; none where there is none."""
    if not url:
        return {}
    try:
        timeout = aiohttp.ClientTimeout(total=WITHIN)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{url.rstrip('/')}/api/tags") as got:
            tags = msgspec.json.decode(await got.read(), type=_Tags)
    except (TimeoutError, aiohttp.ClientError, msgspec.MsgspecError, ValueError):
        return {}  # most people run none
    return {
        model.name: ModelConfig(kind="openai-chat", base_url=f"{url.rstrip('/')}/v1", model=model.name)
        for model in tags.models
    }
