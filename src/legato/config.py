"""Configuration: one TOML file, every value overridable from the environment, frozen once read.

`$LEGATO_HOME/legato.toml` holds sections; `[server] port` is also `LEGATO_SERVER__PORT`, and any value may come from a
file named by the same variable with `_FILE` (for secrets). `LEGATO_DATABASE_URL`, `LEGATO_URL`, `LEGATO_API_KEY` and
`LEGATO_DEFAULT_AGENT` are short for `database.url`, `client.url`, `client.key` and `default_agent`. A list is written
with commas there. systemd's `NOTIFY_SOCKET` is heeded. An unknown key is an error that names the nearest known one;
a variable that only looks like ours (`LEGATO_SERVER_PORT`) may be somebody else's, so it is told and no error. This is
the only reader of the environment.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from legato.errors import BadConfig

Plain = Annotated[str, Meta(pattern=r"^[!-~]*\Z", description="plain letters, digits and signs without spaces")]
"""What can be sent as a header."""

Host = Annotated[str, Meta(pattern=r"^\S+\Z", description="an address or a name to listen on, such as 127.0.0.1")]
HostName = Annotated[
    str,
    Meta(
        pattern=r"^([A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|\[[0-9A-Fa-f:.]+\])(:\d+)?\Z",
        description="names such as gateway.example or gateway.example:8443",
    ),
]
Site = Annotated[
    str,
    Meta(
        pattern=r"^[a-z][a-z0-9+.-]*://[^/\s*,@]+/?\Z",
        description="origins such as https://app.example or app://obsidian.md, without a path",
    ),
]
DatabaseUrl = Annotated[
    str,
    Meta(pattern=r"^(postgres(ql)?://.*)?\Z", description="a URL that begins with postgresql://, or empty for SQLite"),
]

Seconds = Annotated[float, Meta(gt=0, le=86_400)]


UNNAMED = "default"
"""The agent that is there without being configured."""


class ServerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    host: Host = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8420
    unknown_model: Literal["default", "reject", "pass"] = "default"
    max_body: Annotated[int, Meta(ge=1, le=2**40)] = 32 * 1024 * 1024
    drain: Annotated[float, Meta(ge=0, le=86_400)] = 20.0
    hosts: tuple[HostName, ...] = ()
    origins: tuple[Site, ...] = ()
    notify_socket: str = ""  # where systemd wants to be told (Type=notify)


class DatabaseConfig(Struct, frozen=True, forbid_unknown_fields=True):
    url: DatabaseUrl = ""
    connections: Annotated[int, Meta(ge=1, le=10_000)] = 10


class WorkerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    concurrency: Annotated[int, Meta(ge=1, le=1_000_000)] = 256
    lease: Seconds = 9.0
    max_attempts: Annotated[int, Meta(ge=1, le=1_000_000)] = 3


class CompactionConfig(Struct, frozen=True, forbid_unknown_fields=True):
    share: Annotated[float, Meta(gt=0, le=0.95)] = 0.75
    model: str = ""
    timeout: Seconds = 120.0


class TrashConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How long what was deleted can still be restored."""

    keep_days: Annotated[float, Meta(ge=0, le=100_000)] = 30.0


class ClientConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the command line finds a gateway, if not by the home."""

    url: str = ""
    key: Plain = ""


class LogConfig(Struct, frozen=True, forbid_unknown_fields=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"


class ModelConfig(Struct, frozen=True, forbid_unknown_fields=True):
    kind: Literal["demo", "openai-chat"]
    base_url: str = "https://api.openai.com/v1"
    api_key: str = ""
    model: str = ""
    context_window: Annotated[int, Meta(ge=0, le=10**9)] = 0  # tokens; 0 is unknown
    fallback: tuple[str, ...] = ()


class ProvidersConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What is looked for where no model is configured."""

    ollama: str = "http://127.0.0.1:11434"


class AgentConfig(Struct, frozen=True, forbid_unknown_fields=True):
    model: str
    instructions: str = ""
    toolsets: tuple[str, ...] = ()
    max_steps: Annotated[int, Meta(ge=1, le=1_000_000)] = 50


class ChannelConfig(Struct, frozen=True, forbid_unknown_fields=True):
    kind: Literal["telegram", "webhook"]
    token: str = ""
    secret: str = ""
    url: str = ""
    base_url: str = ""
    mode: Literal["poll", "webhook"] = "poll"
    allow: tuple[str, ...] = ()
    principal: str = "local"
    gather: Annotated[float, Meta(ge=0, le=60)] = 0.7
    busy: Literal["queue", "steer", "interrupt"] = "queue"
    reset: str = "none"
    timezone: str = "UTC"
    groups: Literal["mention", "all"] = "mention"
    preview: bool = True
    max_length: Annotated[int, Meta(ge=100, le=10**9)] = 4000
    max_attachment: Annotated[int, Meta(ge=0, le=2**40)] = 20_000_000


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that can be set. `home` comes from LEGATO_HOME or --home."""

    home: Path
    server: ServerConfig = ServerConfig()
    database: DatabaseConfig = DatabaseConfig()
    worker: WorkerConfig = WorkerConfig()
    log: LogConfig = LogConfig()
    client: ClientConfig = ClientConfig()
    compaction: CompactionConfig = CompactionConfig()
    trash: TrashConfig = TrashConfig()
    providers: ProvidersConfig = ProvidersConfig()
    models: dict[str, ModelConfig] = {}
    agents: dict[str, AgentConfig] = {}
    channels: dict[str, ChannelConfig] = {}
    default_agent: str = UNNAMED


Origins = dict[str, str]
"""Where each value came from, by its dotted name."""


def load(
    home: Path | None = None, overrides: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> tuple[Config, Origins]:
    """Read the file and the environment. `overrides` are command-line options, by dotted name."""
    environ = os.environ if environ is None else environ
    home = home_path(home, environ)
    origins: Origins = {}
    values = _from_file(home / "legato.toml", origins)
    _from_environment(environ, values, origins)
    _from_known_keys(environ, values, origins)
    for name, value in (overrides or {}).items():
        _put(values, name, value)
        origins[name] = "command line"
    _check_section(values, Config, "", origins)
    return msgspec.convert({**values, "home": home}, Config, strict=False), origins


def home_path(home: Path | None = None, environ: Mapping[str, str] | None = None) -> Path:
    """Where everything is kept, whatever its file says."""
    environ = os.environ if environ is None else environ
    found = (home or Path(environ.get("LEGATO_HOME") or Path.home() / ".legato")).expanduser().absolute()
    if _undecoded(str(found)):
        raise BadConfig("The path of the home is not UTF-8. Choose another with --home or LEGATO_HOME.")
    return found


def home_key(home: Path) -> str:
    """The key in the home, which the command line uses; empty where there is none yet."""
    path = home / "key"
    try:
        key = path.read_text("utf-8").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"The key file {path} cannot be read: {error}. {_NO_KEY}") from error
    if not re.fullmatch(r"[!-~]*", key):
        raise BadConfig(f"The key file {path} holds no key. {_NO_KEY}")
    if 0 < len(key) < LEAST_KEY:
        raise BadConfig(
            f"The key in {path} can be guessed: it has less than {LEAST_KEY} characters. "
            f"Remove the file and start `legato serve` again: it makes another."
        )
    return key


LEAST_KEY = 20
"""Characters of a key that opens everything; those that we make have 46."""

_NO_KEY = "Check its owner and its content; without the file, `legato serve` makes another key."


def _from_file(path: Path, origins: Origins) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path} cannot be read: {error}") from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadConfig(f"{path} is not valid TOML: {error}") from error
    for name in _leaves(values):
        origins[name] = str(path)
    return values


_SHORT = {
    "LEGATO_DATABASE_URL": "database.url",
    "LEGATO_URL": "client.url",
    "LEGATO_API_KEY": "client.key",
    "LEGATO_DEFAULT_AGENT": "default_agent",
    "NOTIFY_SOCKET": "server.notify_socket",
}


def _from_environment(environ: Mapping[str, str], values: dict[str, Any], origins: Origins) -> None:
    for variable in sorted(environ):
        name = variable.removesuffix("_FILE")
        if name in _SHORT:
            dotted = _SHORT[name]
        elif name.startswith("LEGATO_") and "__" in name:
            dotted = name.removeprefix("LEGATO_").lower().replace("__", ".")
        else:
            continue
        value = environ[variable]
        if name != variable:
            try:
                value = Path(value).read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise BadConfig(f"{variable} names a file that cannot be read: {error}") from error
        elif _undecoded(value):
            raise BadConfig(f"{variable} is not UTF-8.")
        _put(values, dotted, value)
        origins[dotted] = variable


_OF_A_SERVICE = re.compile(r"LEGATO_(SERVICE_HOST|SERVICE_PORT\w*|PORT_\d+_\w+)=|LEGATO_PORT=[a-z]+://")
"""What Kubernetes sets in every container beside a service that is called `legato`."""


def unheeded(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables that look like ours and set nothing, each with the nearest that would, or nothing."""
    ours = {"LEGATO_HOME", *(name for name in _SHORT if name.startswith("LEGATO_"))}
    sections = {field.name: field.type for field in msgspec.structs.fields(Config)}
    known = ours | {
        f"LEGATO_{section}__{field.name}".upper()
        for section, kind in sections.items()
        if isinstance(kind, type) and issubclass(kind, Struct)
        for field in msgspec.structs.fields(kind)
    }
    strange = [
        variable
        for variable, value in sorted((os.environ if environ is None else environ).items())
        if variable.startswith("LEGATO_")
        and "__" not in variable
        and variable not in ours
        and (variable.removesuffix("_FILE") not in _SHORT)
        and not _OF_A_SERVICE.match(f"{variable}={value}")
    ]
    return {
        variable: next(iter(difflib.get_close_matches(variable.removesuffix("_FILE"), known, 1, 0.8)), "")
        for variable in strange
    }


def _undecoded(value: str) -> bool:
    """Whether there are bytes in a value of the environment that are no text."""
    return any("\ud800" <= letter <= "\udfff" for letter in value)


KNOWN_KEYS = {
    "OPENAI_API_KEY": ("openai", "https://api.openai.com/v1", "gpt-5-mini"),
    "ANTHROPIC_API_KEY": ("anthropic", "https://api.anthropic.com/v1", "claude-sonnet-4-5"),
    "OPENROUTER_API_KEY": ("openrouter", "https://openrouter.ai/api/v1", "openrouter/auto"),
}
"""A provider whose key is in the environment is used without a file: its name here, its address, its model."""


def _from_known_keys(environ: Mapping[str, str], values: dict[str, Any], origins: Origins) -> None:
    """Providers, where none is configured."""
    if host := environ.get("OLLAMA_HOST"):
        values.setdefault("providers", {}).setdefault("ollama", host if "//" in host else f"http://{host}")
    if values.get("models"):
        return
    for variable, (name, base_url, model) in KNOWN_KEYS.items():
        if key := environ.get(variable, "").strip():
            base_url = environ.get(variable.replace("_API_KEY", "_BASE_URL")) or base_url
            found = {"kind": "openai-chat", "base_url": base_url, "api_key": key, "model": model}
            values.setdefault("models", {})[name] = found
            origins.update({f"models.{name}.{setting}": variable for setting in found})


def _put(values: dict[str, Any], dotted: str, value: Any) -> None:
    *path, last = dotted.split(".")
    for name in path:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise BadConfig(f"'{name}' is a value, so '{dotted}' cannot be set.")
    values[last] = value


def _leaves(values: dict[str, Any], prefix: str = "") -> list[str]:
    names = []
    for key, value in values.items():
        names += _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else [prefix + key]
    return names


def _check_section(values: dict[str, Any], kind: type[Struct], prefix: str, origins: Origins) -> None:
    """Refuse what does not fit, by its name; make a list of a text that stands for one."""
    fields = {field.name: field for field in msgspec.structs.fields(kind) if field.name != "home"}
    for key, value in values.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1)
            hint = f" Did you mean '{prefix}{near[0]}'?" if near else f" Known here: {', '.join(fields)}."
            raise BadConfig(f"Unknown setting '{prefix}{key}'{_from(prefix + key, origins)}.{hint}")
        values[key] = _checked(value, fields[key].type, prefix + key, origins)
    for name, field in fields.items():
        if field.required and name not in values:
            raise BadConfig(f"{prefix}{name} is missing: it must be {_wanted(field.type)}.")


def _checked(value: Any, kind: Any, name: str, origins: Origins) -> Any:
    """A value that fits its setting."""
    named_sections = get_origin(kind) is dict
    if named_sections or (isinstance(kind, type) and issubclass(kind, Struct)):
        if not isinstance(value, dict):
            raise BadConfig(f"'{name}' must be a section, not a value{_from(name, origins)}.")
        if not named_sections:
            _check_section(value, kind, f"{name}.", origins)
        else:
            for key, entry in value.items():
                _checked(entry, get_args(kind)[1], f"{name}.{key}", origins)
        return value
    if get_origin(kind) is tuple and isinstance(value, str):  # a list, from the environment
        value = [word.strip() for word in value.split(",") if word.strip()]
    try:
        msgspec.convert(value, kind, strict=False)
    except (msgspec.ValidationError, UnicodeError, OverflowError) as error:
        raise BadConfig(f"{name} must be {_wanted(kind)}{_from(name, origins)}.") from error
    return value


def _from(name: str, origins: Origins) -> str:
    said_in = next((origin for each, origin in origins.items() if f"{each}.".startswith(f"{name}.")), None)
    return f" (from {said_in})" if said_in is not None else ""


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _wanted(kind: Any) -> str:
    """What a setting may be, in words."""
    if get_origin(kind) is Literal:
        return " or ".join(f'"{choice}"' for choice in get_args(kind))
    if get_origin(kind) is tuple:
        each = get_args(kind)[0]
        return f"a list of {_wanted(each) if get_origin(each) is Annotated else 'texts'}"
    if get_origin(kind) is not Annotated:
        return _KINDS[kind]
    plain, meta = get_args(kind)
    if meta.description:
        return str(meta.description)
    if meta.ge is not None:
        return f"{_KINDS[plain]} from {meta.ge} to {meta.le}"
    return f"{_KINDS[plain]} above {meta.gt}, at most {meta.le}"
