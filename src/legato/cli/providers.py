"""Whether the providers of the configured models answer. A key goes to its own provider and nowhere else."""

import http.client
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from legato.config import Config
from legato.domain.checks import Check

WITHIN = 5.0


def providers(config: Config) -> Iterator[Check]:
    """One check for each provider, all asked at once."""
    asked: dict[tuple[str, str], list[str]] = {}
    for name, model in config.models.items():
        if model.kind != "demo":
            asked.setdefault((model.base_url, model.api_key), []).append(name)
    if not asked:
        yield Check("models", "ok", "No provider is configured; a running Ollama answers, or else the demo.")
        return
    with ThreadPoolExecutor(len(asked)) as pool:
        yield from pool.map(_check, asked, asked.values())


def _check(provider: tuple[str, str], names: list[str]) -> Check:
    base_url, key = provider
    name = f"model {', '.join(names)}"
    try:
        place = urlsplit(base_url).hostname or ""
        status = _status(base_url, key)
    except (OSError, http.client.HTTPException, ValueError) as error:
        says = f"Its provider {place or 'at a broken address'} does not answer: {_why(error)}."
        return Check(name, "problem", says, "Check its base_url and the network.")
    if status in (401, 403):
        return Check(name, "problem", f"{place} refuses the key ({status}).", "Check its api_key.")
    if status == 404:
        says = f"{place} has no models at {urlsplit(base_url).path.rstrip('/')}/models (404)."
        return Check(name, "warning", says, "Check its base_url: most end in /v1.")
    if status >= 500 or status == 429:
        return Check(name, "warning", f"{place} answers with an error ({status}).", "Try again later.")
    return Check(name, "ok", f"{place} answers.")


def _status(base_url: str, key: str) -> int:
    """What a provider answers to the question for its models. Redirections are not followed."""
    parts = urlsplit(base_url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=WITHIN)
    try:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        connection.request("GET", f"{parts.path.rstrip('/')}/models", headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def _why(error: Exception) -> str:
    """The reason in words; errors of other kinds may quote what was sent."""
    if isinstance(error, TimeoutError):
        return f"nothing came within {WITHIN:.0f} seconds"
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else type(error).__name__
