"""Configuration: what is found without a file, and that everything that can be set is documented."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from legato.app import open_app
from legato.config import Config, ModelConfig, load
from legato.errors import BadConfig
from legato.models import ollama

DOCUMENT = Path(__file__).parent.parent / "docs" / "configuration.md"


def settings_of(kind: Any, prefix: str = "") -> Iterator[str]:
    """Every setting by its dotted name."""
    for field in msgspec.structs.fields(kind):
        inner = field.type
        if getattr(inner, "__origin__", None) is dict:
            yield from settings_of(inner.__args__[1], f"{prefix}{field.name}.NAME.")
        elif isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            yield from settings_of(inner, f"{prefix}{field.name}.")
        elif field.name != "home":
            yield prefix + field.name


def test_every_setting_is_documented_and_every_documented_one_exists() -> None:
    documented = [line.split("`")[1] for line in DOCUMENT.read_text("utf-8").splitlines() if line.startswith("| `")]
    assert sorted(documented) == sorted(settings_of(Config))


@pytest.mark.parametrize(
    ("variable", "name", "host"),
    [
        ("OPENAI_API_KEY", "openai", "api.openai.com"),
        ("ANTHROPIC_API_KEY", "anthropic", "api.anthropic.com"),
        ("OPENROUTER_API_KEY", "openrouter", "openrouter.ai"),
    ],
)
def test_a_providers_key_in_the_environment_is_enough(tmp_path: Path, variable: str, name: str, host: str) -> None:
    config, origins = load(tmp_path, environ={variable: "sk-1"})
    [(found, model)] = config.models.items()
    assert (found, model.kind, model.api_key) == (name, "openai-chat", "sk-1")
    assert host in model.base_url
    assert model.model
    assert origins[f"models.{name}.api_key"] == variable


def test_a_providers_key_is_not_looked_at_where_a_model_is_configured(tmp_path: Path) -> None:
    (tmp_path / "legato.toml").write_text('[models.mine]\nkind = "demo"\n')
    config, _ = load(tmp_path, environ={"OPENAI_API_KEY": "sk-1"})
    assert list(config.models) == ["mine"]


def test_a_providers_address_may_be_another(tmp_path: Path) -> None:
    config, _ = load(tmp_path, environ={"OPENAI_API_KEY": "sk-1", "OPENAI_BASE_URL": "http://127.0.0.1:1/v1"})
    assert config.models["openai"].base_url == "http://127.0.0.1:1/v1"


@contextmanager
def listening(status: int, body: bytes) -> Iterator[str]:
    """An HTTP server that says the same to everyone."""

    class Requests(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Requests) as listener:
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.server_address[1]}"
        listener.shutdown()
        thread.join(30)


async def test_the_models_of_a_running_ollama_are_found(tmp_path: Path) -> None:
    """At its usual place, or where OLLAMA_HOST says."""
    tags = {"models": [{"name": "llama3.2:latest", "size": 1}, {"name": "qwen3:8b"}]}
    with listening(200, json.dumps(tags).encode()) as host:
        config, _ = load(tmp_path, environ={"OLLAMA_HOST": host})
        found = await ollama.find(config.providers.ollama)
    url = f"http://{host}/v1"
    assert found == {
        name: ModelConfig(kind="openai-chat", base_url=url, model=name) for name in ("llama3.2:latest", "qwen3:8b")
    }
    assert load(tmp_path, environ={})[0].providers.ollama == "http://127.0.0.1:11434"


async def test_what_is_no_ollama_is_no_trouble() -> None:
    """Nobody there, somebody else, and switched off."""
    assert await ollama.find("http://127.0.0.1:1") == {}
    assert await ollama.find("") == {}
    for status, body in ((404, b"not found"), (200, b"<html>"), (200, b'{"models": 7}')):
        with listening(status, body) as host:
            assert await ollama.find(f"http://{host}") == {}


@pytest.mark.parametrize("other", ["nobody", "mine"])
async def test_a_model_cannot_fall_back_on_nobody_or_itself(tmp_path: Path, other: str) -> None:
    (tmp_path / "legato.toml").write_text(f'[models.mine]\nkind = "demo"\nfallback = ["{other}"]\n')
    with pytest.raises(BadConfig, match="cannot fall back"):
        async with open_app(load(tmp_path, environ={})[0]):
            pass


async def test_summaries_cannot_be_written_by_nobody(tmp_path: Path) -> None:
    (tmp_path / "legato.toml").write_text('[compaction]\nmodel = "nobody"\n')
    with pytest.raises(BadConfig, match="Nobody named 'nobody'"):
        async with open_app(load(tmp_path, environ={})[0]):
            pass


def test_a_list_in_the_environment_is_written_with_commas(tmp_path: Path) -> None:
    environ = {
        "LEGATO_AGENTS__A__MODEL": "demo",
        "LEGATO_AGENTS__A__TOOLSETS": "clock, files",
        "LEGATO_HOME": str(tmp_path),
    }
    config, _ = load(environ=environ)
    assert config.agents["a"].toolsets == ("clock", "files")
