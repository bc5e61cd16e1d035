"""`legato doctor`: look at everything that can go wrong around a gateway, and say what to do about it.

It changes nothing, unless `--fix` asks for what is safe: modes, an address that nobody answers, the search index. A
gateway that runs is asked about its store; where none runs, the store is read as it is.
"""

import asyncio
import json
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import msgspec

from legato import __version__
from legato.app import look_at_database, open_database, prove
from legato.cli import client
from legato.cli.client import Client
from legato.cli.providers import providers
from legato.cli.table import readable
from legato.config import Config, home_key, home_path, load, unheeded
from legato.domain.checks import Check, State
from legato.engine import diagnosis
from legato.errors import BadConfig, LegatoError
from legato.store import figures, keys, search
from legato.store.migrate import known_version, migrations

PATIENCE = 15.0
LITTLE, SOME = 200 * 10**6, 10**9  # bytes of free space
HOME_MODE, KEY_MODE, STALE_URL = "home mode", "key mode", "url"
NEEDED = {"telegram": ("token",), "webhook": ("secret", "url")}
COLOURS: dict[State, str] = {"ok": "green", "warning": "yellow", "problem": "red"}


def run_doctor(home: Path | None, *, channel: str | None, fix: bool, offline: bool, as_json: bool) -> None:
    """Print one line for each check; exit 1 when something is wrong."""

    def examined() -> list[Check]:
        return list(_channel(home, channel) if channel else _examined(home, offline))

    checks = examined()
    fixed = [_fixed(home, check) for check in checks if check.fix] if fix else []
    if fixed:
        checks = examined()
    sound = all(check.state != "problem" for check in checks)
    if as_json:
        told = {"sound": sound, "checks": msgspec.to_builtins(checks), "fixed": fixed}
        click.echo(json.dumps(told, ensure_ascii=False, indent=2))
    else:
        for line in fixed:
            click.echo(click.style("fixed    ", fg="cyan") + line)
        for check in checks:
            click.echo(_line(check))
    sys.exit(0 if sound else 1)


def _line(check: Check) -> str:
    state = click.style(f"{check.state:8}", fg=COLOURS[check.state])
    return f"{state} {check.name:13} {' '.join(f'{check.says} {check.advice}'.split())}"


def _examined(home: Path | None, offline: bool) -> Iterator[Check]:
    try:
        config, _ = load(home)
        asyncio.run(prove(config))
    except LegatoError as error:
        place = home_path(home)
        yield Check("configuration", "problem", error.message, f"Mend {place / 'legato.toml'} or the environment.")
        yield from _home(place)
        return
    yield Check("configuration", "ok", "The configuration is sound.")
    for variable, near in unheeded().items():
        yield Check("environment", "warning", f"{variable} sets nothing.", f"Did you mean {near}?" if near else "")
    yield from _home(config.home)
    try:
        gateway = client.running(config, PATIENCE)
    except LegatoError:  # the key cannot be read, as was said
        return
    yield from _address(config, gateway)
    yield from _space(config)
    if gateway is not None:
        yield from _asked(gateway)
    else:
        yield from asyncio.run(_looked(config))
    for name in config.channels:
        yield from _connected(config, name, gateway)
    yield from [] if offline else providers(config)


# -- channels


def _channel(home: Path | None, named: str) -> Iterator[Check]:
    """What is missing for one channel: by its name, or by its kind."""
    config, _ = load(home)
    found = [name for name, channel in config.channels.items() if named in (name, channel.kind)]
    if not found:
        says = f"No channel {named!r} is configured."
        kinds = [kind for kind in NEEDED if kind == named] or [*NEEDED]
        chosen = " or ".join(f'"{kind}"' for kind in kinds)
        advice = f"Write [channels.{named}] with kind = {chosen} into {config.home / 'legato.toml'}; see docs/guide."
        yield Check("channel", "problem", says, advice)
    gateway = client.running(config, PATIENCE)
    for name in found:
        yield from _connected(config, name, gateway)


def _connected(config: Config, name: str, gateway: Client | None) -> Iterator[Check]:
    channel, label = config.channels[name], f"channel {name}"
    for setting in NEEDED[channel.kind]:
        if not getattr(channel, setting):
            advice = f"Set channels.{name}.{setting}, or LEGATO_CHANNELS__{name.upper()}__{setting.upper()}_FILE."
            yield Check(label, "problem", f"It has no {setting}.", advice)
    if not channel.allow:
        says = "Nobody is allowed to speak without being paired."
        yield Check(label, "ok", says, "Whoever writes first gets a code for `legato pair`.")
    if gateway is None:
        yield Check(label, "warning", "No gateway runs, so nobody is answered.", "Start one with `legato serve`.")
        return
    try:
        state = gateway.get("/readyz").get("channels", {}).get(name)
    except LegatoError as error:
        yield Check(label, "problem", error.message)
        return
    if state == "up":
        yield Check(label, "ok", "It is connected.")
    else:
        says = state or "The gateway does not know it."
        yield Check(label, "problem", says, "Restart the gateway after a change of its configuration.")


# -- the home


def _home(home: Path) -> Iterator[Check]:
    if not home.is_dir():
        yield Check("home", "warning", f"There is no home at {home}.", "`legato serve` makes it.")
        return
    found = home.stat()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.getuid():
        yield Check("home", "problem", f"{home} belongs to another user.", "Run as its owner, or choose another home.")
    elif mode & 0o077 or mode & 0o700 != 0o700:
        why = "others may look into it" if mode & 0o077 else "nothing can be written there"
        says = f"{home} has mode {mode:04o}: {why}."
        yield Check("home", "problem", says, f"`chmod 700 {home}`, or `legato doctor --fix`.", HOME_MODE)
    else:
        yield Check("home", "ok", f"{home} is yours alone.")
    yield _key(home / "key")


def _key(path: Path) -> Check:
    if not path.exists() or not path.stat().st_size:
        return Check("key", "warning", "There is no key file.", "The next `legato serve` makes one.")
    try:
        home_key(path.parent)
    except LegatoError as error:
        return Check("key", "problem", error.message)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        says = f"{path} has mode {mode:04o}: others may use your key."
        return Check("key", "problem", says, f"`chmod 600 {path}`, or `legato doctor --fix`.", KEY_MODE)
    return Check("key", "ok", "The key file is yours alone.")


def _space(config: Config) -> Iterator[Check]:
    if not config.home.is_dir():
        return
    free = shutil.disk_usage(config.home).free
    database = config.home / "legato.db"
    wanted = max(SOME, database.stat().st_size if database.is_file() else 0)
    state: State = "problem" if free < LITTLE else "warning" if free < wanted else "ok"
    advice = "" if state == "ok" else "Free some: what cannot be written is refused, and a backup needs room."
    yield Check("space", state, f"{readable(free)} are free on the disk of {config.home}.", advice)


# -- the gateway


def _address(config: Config, gateway: Client | None) -> Iterator[Check]:
    if gateway is None and (config.home / client.PLACE).exists():
        if not config.database.url and client.owned(config.home):
            says = "A process holds the database and does not answer."
            yield Check("gateway", "problem", says, "Look into its log; stop it and start it again.")
        else:
            says = f"{config.home / client.PLACE} names a gateway that does not answer; it was probably killed."
            yield Check("gateway", "warning", says, "`legato serve` starts one; `--fix` removes the file.", STALE_URL)
    elif gateway is None:
        yield Check("gateway", "warning", "No gateway runs on this home.", "Start one with `legato serve`.")


def _asked(gateway: Client) -> Iterator[Check]:
    """What a gateway says of itself and of its store."""
    try:
        gateway.greet()
    except LegatoError as error:
        yield Check("gateway", "problem", error.message)
        return
    try:
        gateway.get("/readyz")
        yield Check("gateway", "ok", f"A gateway runs at {gateway.url} and is ready.")
    except LegatoError as error:
        yield Check("gateway", "problem", f"The gateway at {gateway.url} is not ready: {error.message}")
    try:
        told = gateway.get("/v1/doctor")
    except LegatoError as error:
        if isinstance(error, client.Refused) and error.status == 401:
            yield Check("access", "problem", error.message)
        else:
            says = f"The gateway does not tell of its store: {error.message}"
            forbidden = isinstance(error, client.Refused) and error.status == 403
            yield Check("store", "problem", says, "Use an admin key." if forbidden else "")
        return
    if told["version"] == __version__:
        yield Check("version", "ok", f"The gateway and this command are both {__version__}.")
    else:
        says = f"The gateway is {told['version']}, this command is {__version__}."
        yield Check("version", "warning", says, "Restart the gateway after an upgrade.")
    yield from msgspec.convert(told["checks"], list[Check])


# -- the store, where no gateway runs


async def _looked(config: Config) -> list[Check]:
    if not config.database.url and not (config.home / "legato.db").exists():
        return [Check("database", "ok", "There is no database yet.")]
    try:
        db = await look_at_database(config)
        try:
            applied = dict(await db.read(figures.versions))
            version, newest = known_version(applied, db.dialect), migrations(db.dialect)[-1].version
            if version < newest:
                says = f"The database has schema {version}; this Legato brings it to {newest} at its next start."
                return [Check("database", "ok", says)]
            checks = diagnosis.judge(await db.read(figures.health), running=False)
            with suppress(BadConfig):  # a key that cannot be read was told of already
                if await db.read(keys.revoked, home_key(config.home)):
                    says = f"The key in {config.home / 'key'} was revoked, so commands are refused:"
                    checks.append(Check("access", "problem", says, client.ANOTHER_KEY))
        finally:
            await db.close()
    except LegatoError as error:
        return [Check("database", "problem", error.message)]
    return [Check("database", "ok", f"The database can be opened; it has schema {version}, the newest."), *checks]


# -- what is safe to mend


def _fixed(home: Path | None, check: Check) -> str:
    """Mend what a check found; returns what was done."""
    place = home_path(home)
    match check.fix:
        case "home mode":
            place.chmod(0o700)
            return f"{place} has mode 0700."
        case "key mode":
            (place / "key").chmod(0o600)
            return f"{place / 'key'} has mode 0600."
        case "url":
            (place / client.PLACE).unlink(missing_ok=True)
            return f"{place / client.PLACE} is removed."
        case diagnosis.REBUILD:
            config, _ = load(home)
            if gateway := client.running(config):
                gateway.post("/v1/search/rebuild")
            else:
                asyncio.run(_rebuild(config))
            return "The search index was emptied; it fills itself while a gateway runs."
        case unknown:
            return f"Nothing: this command does not know how to mend '{unknown}'."


async def _rebuild(config: Config) -> None:
    db = await open_database(config)
    try:
        await db.write(search.rebuild)
    finally:
        await db.close()
