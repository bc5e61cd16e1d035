"""Configuration: what is found without a file, and that everything that can be set is documented."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from legato.app import open_app, prove
from legato.config import Config, ModelConfig, load, unheeded
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
    rows = [line for line in DOCUMENT.read_text("utf-8").splitlines() if line.startswith("| `")]
    documented = {row.split("`")[1]: row.split("|")[2].strip() for row in rows}
    assert sorted(documented) == sorted(settings_of(Config))
    required = {name for name, default in documented.items() if default == "required"}
    assert required == {"models.NAME.kind", "agents.NAME.model", "channels.NAME.kind"}


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


def refusal(tmp_path: Path, text: str = "", environ: dict[str, str] | None = None) -> str:
    """What is said of a configuration that cannot be used."""
    (tmp_path / "legato.toml").write_text(text)
    with pytest.raises(BadConfig) as refused, asyncio.Runner() as runner:
        runner.run(prove(load(tmp_path, environ=environ or {"LEGATO_PROVIDERS__OLLAMA": ""})[0]))
    return refused.value.message


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("server.port", "70000", "from 0 to 65535"),
        ("server.port", "-1", "from 0 to 65535"),
        ("server.port", "1" + 400 * "0", "from 0 to 65535"),
        ("server.port", "true", "a whole number"),
        ("server.max_body", "-5", "from 1"),
        ("server.drain", "nan", "from 0"),
        ("server.drain", "inf", "from 0"),
        ("server.drain", "1" + 400 * "0", "from 0"),
        ("server.host", "5", "an address or a name"),
        ("server.host", '""', "an address or a name"),
        ("server.host", '"127.0.0.1 "', "an address or a name"),
        ("server.hosts", '["http://gateway.example"]', "names such as gateway.example"),
        ("server.hosts", '["*.example"]', "names such as gateway.example"),
        ("server.hosts", '["gateway.example."]', "names such as gateway.example"),
        ("server.origins", '["*"]', "origins such as https://app.example"),
        ("server.origins", '["null"]', "origins such as https://app.example"),
        ("server.origins", '["file://"]', "origins such as https://app.example"),
        ("server.origins", '["app.example"]', "origins such as https://app.example"),
        ("server.origins", '["https://app.example/page"]', "origins such as https://app.example"),
        ("database.url", '"mysql://db.example/legato"', "begins with postgresql://"),
        ("database.connections", "0", "from 1"),
        ("worker.concurrency", "0", "from 1"),
        ("worker.max_attempts", "0", "from 1"),
        ("worker.lease", "0", "above 0"),
        ("compaction.timeout", "-1", "above 0"),
        ("compaction.share", "1", "at most 0.95"),
        ("trash.keep_days", "inf", "from 0"),
        ("log.level", '"loud"', '"debug" or "info"'),
        ("models.mine.kind", '"openai"', '"demo" or "openai-chat"'),
        ("models.mine.context_window", "-1", "from 0"),
        ("agents.default.max_steps", "0", "from 1"),
        ("agents.default.toolsets", "[1]", "a list"),
        ("channels.bot.max_length", "1", "from 100"),
        ("channels.bot.preview", '"maybe"', "true or false"),
        ("models", "5", "a section"),
        ("models.mine", "5", "a section"),
    ],
)
def test_a_value_that_cannot_be_used_is_told_by_its_name_with_what_is_allowed(
    tmp_path: Path, name: str, value: str, allowed: str
) -> None:
    said = refusal(tmp_path, f"{name} = {value}\n")
    assert name in said
    assert allowed in said
    assert str(tmp_path / "legato.toml") in said


def test_every_number_has_bounds() -> None:
    """What can be set to anything is set to something that cannot work."""

    def unbounded(kind: Any) -> Iterator[str]:
        for field in msgspec.structs.fields(kind):
            inner = field.type
            if getattr(inner, "__origin__", None) is dict:
                yield from unbounded(inner.__args__[1])
            elif isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                yield from unbounded(inner)
            elif inner in (int, float):
                yield field.name

    assert list(unbounded(Config)) == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('default_agent = "helpr"\n', "default_agent is 'helpr', but no agent is called so; there are: default."),
        ('default_agent = "helpr"\n[agents.helper]\nmodel = "demo"\n', "there are: helper, default."),
        ('[agents.helper]\nmodel = "nobody"\n', "Agent 'helper' wants model 'nobody'"),
        ('[models.mine]\nkind = "openai-chat"\nbase_url = "nope"\n', "models.mine: 'nope' is no address"),
        ('[channels.bridge]\nkind = "webhook"\nurl = "nope"\n', "channels.bridge: 'nope' is no address"),
        ('[channels.bot]\nkind = "telegram"\nreset = "often"\n', "channels.bot: 'often' is no time"),
        ('[models.mine]\nmodel = "x"\n', "models.mine.kind is missing"),
        ('[agents.helper]\ninstructions = "x"\n', "agents.helper.model is missing"),
    ],
)
def test_what_the_gateway_would_refuse_at_its_start_is_found_by_a_check(tmp_path: Path, text: str, named: str) -> None:
    assert named in refusal(tmp_path, text)


def test_what_is_not_utf_8_is_told_by_the_name_of_its_variable(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"caf\xe9")
    for variable, value in (
        ("LEGATO_API_KEY_FILE", str(secret)),
        ("LEGATO_SERVER__HOST", "caf\udce9"),
        ("LEGATO_SERVER__PORT", "\udce9"),
    ):
        assert variable in refusal(tmp_path, environ={variable: value})


def test_the_default_agent_may_be_chosen_in_the_environment(tmp_path: Path) -> None:
    """It is in no section, and one that nobody has is refused as in the file."""
    known = {"LEGATO_AGENTS__HELPER__MODEL": "demo", "LEGATO_PROVIDERS__OLLAMA": ""}
    config, origins = load(tmp_path, environ={**known, "LEGATO_DEFAULT_AGENT": "helper"})
    assert (config.default_agent, origins["default_agent"]) == ("helper", "LEGATO_DEFAULT_AGENT")
    assert "default_agent is 'helpr'" in refusal(tmp_path, environ={**known, "LEGATO_DEFAULT_AGENT": "helpr"})


@pytest.mark.parametrize(
    ("variable", "near"),
    [
        ("LEGATO_SERVER_PORT", "LEGATO_SERVER__PORT"),
        ("LEGATO_HOM", "LEGATO_HOME"),
        ("LEGATO_APIKEY", "LEGATO_API_KEY"),
        ("LEGATO_DATABSE_URL_FILE", "LEGATO_DATABASE_URL"),
        ("LEGATO_FAVOURITE_COLOUR", ""),
    ],
)
def test_a_variable_that_sets_nothing_is_told_with_the_nearest_that_would(variable: str, near: str) -> None:
    assert unheeded({variable: "1", "PATH": "/bin"}) == {variable: near}


def test_what_kubernetes_sets_beside_a_service_of_our_name_is_nobodys_slip() -> None:
    service = {"LEGATO_SERVICE_HOST": "10.0.0.7", "LEGATO_SERVICE_PORT": "8420", "LEGATO_SERVICE_PORT_HTTP": "8420"}
    port = {"LEGATO_PORT": "tcp://10.0.0.7:8420", "LEGATO_PORT_8420_TCP_ADDR": "10.0.0.7"}
    assert unheeded(service | port) == {}
    assert list(unheeded({"LEGATO_PORT": "8420"})) == ["LEGATO_PORT"]


def test_every_variable_that_sets_something_is_heeded(tmp_path: Path) -> None:
    """Those with a short name, too, and from files."""
    (tmp_path / "value").write_text("demo")
    environ = {"LEGATO_HOME": str(tmp_path), "LEGATO_DEFAULT_AGENT": "demo", "LEGATO_SERVER__PORT": "1"}
    environ |= {"LEGATO_CHANNELS__MINE__TOKEN": "", "LEGATO_CHANNELS__MINE__KIND": "telegram"}
    environ |= dict.fromkeys(["LEGATO_API_KEY_FILE", "LEGATO_URL_FILE"], str(tmp_path / "value"))
    config, _ = load(environ=environ)
    assert unheeded(environ) == {}
    assert (config.default_agent, config.client.key, config.client.url) == ("demo", "demo", "demo")


def test_a_list_in_the_environment_is_written_with_commas(tmp_path: Path) -> None:
    environ = {
        "LEGATO_AGENTS__A__MODEL": "demo",
        "LEGATO_AGENTS__A__TOOLSETS": "clock, files",
        "LEGATO_HOME": str(tmp_path),
    }
    config, _ = load(environ=environ)
    assert config.agents["a"].toolsets == ("clock", "files")
