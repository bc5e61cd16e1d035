"""`legato`: the commands. What a command needs is imported when it runs, so that `--help` is instant."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from legato import __version__
from legato.errors import LegatoError

Command = Callable[..., Any]

INTERRUPTED = 128 + signal.SIGINT
"""The exit code of what Ctrl-C has ended, as shells count."""


class Commands(click.Group):
    """Errors of ours are told in a sentence, not in a traceback; Ctrl-C needs none."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except LegatoError as error:
            click.echo(f"legato: {error.message}", err=True)
            sys.exit(1)
        except KeyboardInterrupt:
            click.echo(err=True)  # behind the ^C
            sys.exit(INTERRUPTED)


home_option = click.option(
    "--home", type=click.Path(path_type=Path), help="Where everything is kept (LEGATO_HOME, default ~/.legato)."
)
database_option = click.option("--database-url", help="A PostgreSQL URL (LEGATO_DATABASE_URL); without it, SQLite.")


def chat_options(command: Command) -> Command:
    """What a chat can be told."""
    for option in (
        click.option("-m", "--model", help="The agent or model that answers."),
        click.option("-r", "--resume", help="Go on with this one: an id, a slug, a title, or the beginning of one."),
        click.option("-c", "--continue", "last", is_flag=True, help="Go on with the newest conversation."),
        home_option,
    ):
        command = option(command)
    return command


@click.group(
    cls=Commands,
    invoke_without_command=True,
    subcommand_metavar="[COMMAND] [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="legato")
@chat_options
@click.pass_context
def cli(ctx: click.Context, home: Path | None, last: bool, resume: str | None, model: str | None) -> None:
    """A gateway for AI agents in which a conversation never loses its thread. Without a command: a chat."""
    if ctx.invoked_subcommand is None:
        _chat(home, last, resume, model)
    elif last or home or resume or model:
        raise click.UsageError(f"Options of {ctx.invoked_subcommand!r} go after its name.")


@cli.command()
@chat_options
def chat(home: Path | None, last: bool, resume: str | None, model: str | None) -> None:
    """Talk, in this terminal."""
    _chat(home, last, resume, model)


def _chat(home: Path | None, last: bool, resume: str | None, model: str | None) -> None:
    _one_place(last, resume)
    from legato.cli.chat import run_chat  # noqa: PLC0415 - what draws on a terminal is slow to import

    run_chat(home, last=last, resume=resume, model=model)


def _one_place(last: bool, resume: str | None) -> None:
    if last and resume is not None:
        raise click.UsageError("-c goes on with the newest conversation, -r with the one you name: give one of them.")


@cli.command()
@home_option
@database_option
@click.option("--host", help="Address to listen on (default 127.0.0.1).")
@click.option("--port", type=int, help="Port to listen on (default 8420).")
@click.option("--private", is_flag=True, help="Serve whoever started it: end when standard input ends.")
def serve(home: Path | None, database_url: str | None, host: str | None, port: int | None, private: bool) -> None:
    """Run the gateway."""
    from legato.cli.serve import run_server  # noqa: PLC0415 - the server's imports are slow, and only it needs them

    options = {"database.url": database_url, "server.host": host, "server.port": port}
    run_server(home, {name: value for name, value in options.items() if value is not None}, private=private)


# -- the store

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
file_argument = click.argument("path", type=click.Path(path_type=Path))


@cli.command()
@home_option
@database_option
@json_option
def verify(home: Path | None, database_url: str | None, as_json: bool) -> None:
    """Prove that the store is whole: check every rule of the schema and of the log."""
    from legato.cli.verify import run_verify  # noqa: PLC0415 - as above

    run_verify(home, {"database.url": database_url} if database_url is not None else {}, as_json=as_json)


@cli.command()
@home_option
@click.option("--force", is_flag=True, help="Replace a file that is there already.")
@json_option
@file_argument
def backup(home: Path | None, force: bool, as_json: bool, path: Path) -> None:
    """Write everything into one file, while the gateway goes on."""
    from legato.cli.backup import run_backup  # noqa: PLC0415 - as above

    run_backup(home, path, force=force, as_json=as_json)


@cli.command("restore-backup")
@home_option
@database_option
@click.option("--replace", is_flag=True, help="Keep the database that is there under another name, and take its place.")
@file_argument
def restore_backup(home: Path | None, database_url: str | None, replace: bool, path: Path) -> None:
    """Put a backup back, into a home or an empty PostgreSQL that no gateway uses."""
    from legato.cli.backup import run_restore  # noqa: PLC0415 - as above

    run_restore(home, path, {"database.url": database_url} if database_url is not None else {}, replace=replace)


@cli.command()
@home_option
@json_option
def stats(home: Path | None, as_json: bool) -> None:
    """Count what you have; with an administrator's key, also what the store holds."""
    from legato.cli.stats import run_stats  # noqa: PLC0415 - as above

    run_stats(home, as_json=as_json)


@cli.command()
@home_option
@click.option("--fix", is_flag=True, help="Mend what is safe: modes, an address nobody answers, the search index.")
@click.option("--offline", is_flag=True, help="Do not ask the providers of the configured models.")
@json_option
@click.argument("channel", required=False)
def doctor(home: Path | None, fix: bool, offline: bool, as_json: bool, channel: str | None) -> None:
    """Look for problems and say what to do about them; nothing is changed without --fix. With a CHANNEL, only there."""
    from legato.cli.doctor import run_doctor  # noqa: PLC0415 - as above

    run_doctor(home, channel=channel, fix=fix, offline=offline, as_json=as_json)


@cli.command()
@click.option("--database-url", help="A PostgreSQL to try it on, in a schema of its own; without it, SQLite.")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, help="How long.")
@click.option("--seed", type=click.IntRange(0), help="The same seed gives the same plan of requests and faults.")
@click.option("--nodes", type=click.IntRange(1, 16), help="How many gateways (default 1; 2 on PostgreSQL).")
@click.option("--json", "json_to", metavar="FILE", help="Write everything as JSON; - prints it instead of the table.")
@click.option("--keep", is_flag=True, help="Keep the scratch folder (and schema) to look into.")
def prove(
    database_url: str | None, minutes: float, seed: int | None, nodes: int | None, json_to: str | None, keep: bool
) -> None:
    """Kill gateways while clients talk to them, and show that nothing is lost. Your own data is not touched."""
    from legato.cli.prove.drill import run_prove  # noqa: PLC0415 - as above

    run_prove(minutes=minutes, seed=seed, nodes=nodes, database_url=database_url, json_to=json_to, keep=keep)


# -- conversations

what_argument = click.argument("what")


@cli.command()
@home_option
@click.option("-c", "--continue", "last", is_flag=True, help="Go on with the newest conversation.")
@click.option("-r", "--resume", help="Go on with this one: an id, a slug, a title, or the beginning of one.")
@click.option("-m", "--model", help="The agent or model that answers.")
@json_option
@click.argument("text", nargs=-1)
def ask(
    home: Path | None, last: bool, resume: str | None, model: str | None, as_json: bool, text: tuple[str, ...]
) -> None:
    """Ask one thing; the answer alone is printed. The text may come on standard input."""
    _one_place(last, resume)
    from legato.cli import care  # noqa: PLC0415 - as above

    said = [" ".join(text)] if text else []
    if not sys.stdin.isatty() and (piped := sys.stdin.buffer.read().decode(errors="surrogateescape")).strip():
        said.append(piped.removesuffix("\n"))
    care.ask(home, "\n\n".join(said), last=last, resume=resume, model=model, as_json=as_json)


@cli.command()
@home_option
@click.option("-n", "--limit", type=click.IntRange(1), help="How many at most (default 50).")
@click.option("--all", "everything", is_flag=True, help="Everything, also what programs run by themselves.")
@click.option("--kind", help="Only conversations of this kind: chat, or run.")
@click.option("-q", "--query", help="Only those that contain this.")
@json_option
def ls(
    home: Path | None, limit: int | None, everything: bool, kind: str | None, query: str | None, as_json: bool
) -> None:
    """List the conversations that people have, newest first."""
    from legato.cli import care  # noqa: PLC0415 - as above

    care.list_conversations(home, limit=limit, kind=kind, everything=everything, query=query, as_json=as_json)


@cli.command()
@home_option
@json_option
@what_argument
def show(home: Path | None, as_json: bool, what: str) -> None:
    """Show everything that was said in a conversation."""
    from legato.cli import care  # noqa: PLC0415 - as above

    care.show(home, what, as_json=as_json)


@cli.command()
@home_option
@click.option("-n", "--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="How many at most.")
@json_option
@click.argument("query")
def search(home: Path | None, limit: int, as_json: bool, query: str) -> None:
    """Find what was said, in any conversation and any script."""
    from legato.cli import care  # noqa: PLC0415 - as above

    care.search(home, query, limit=limit, as_json=as_json)


@cli.command()
@home_option
@what_argument
@click.argument("title")
def rename(home: Path | None, what: str, title: str) -> None:
    """Give a conversation another title; its id and names stay."""
    from legato.cli import care  # noqa: PLC0415 - as above

    care.rename(home, what, title)


@cli.command()
@home_option
@what_argument
def rm(home: Path | None, what: str) -> None:
    """Put a conversation into the trash; its names are free at once."""
    from legato.cli import care  # noqa: PLC0415 - as above

    care.remove(home, what)


@cli.command()
@home_option
@json_option
@click.argument("what", required=False)
def restore(home: Path | None, as_json: bool, what: str | None) -> None:
    """Take a conversation out of the trash; without a name, list what is in it."""
    from legato.cli import care  # noqa: PLC0415 - as above

    care.restore(home, what, as_json=as_json)


@cli.command()
@home_option
@click.option("--all", "everything", is_flag=True, help="Empty the trash.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.argument("what", required=False)
def purge(home: Path | None, everything: bool, yes: bool, what: str | None) -> None:
    """Let nothing be left of a conversation, on the disk neither. This cannot be undone."""
    from legato.cli import care  # noqa: PLC0415 - as above

    care.purge(home, what, everything=everything, yes=yes)


@cli.command()
@home_option
@json_option
@what_argument
def fork(home: Path | None, as_json: bool, what: str) -> None:
    """Make a conversation that begins where another stands, and print its id."""
    from legato.cli import care  # noqa: PLC0415 - as above

    care.fork(home, what, as_json=as_json)


@cli.command()
@home_option
@click.option("--focus", default="", help="What the summary should mind most.")
@what_argument
def compact(home: Path | None, focus: str, what: str) -> None:
    """Let a summary stand for the past of a conversation, for the model only."""
    from legato.cli import care  # noqa: PLC0415 - as above

    care.compact(home, what, focus)


@cli.command()
@home_option
@click.option("--chat", is_flag=True, help="NAME is a chat of a channel, CHANNEL:CHAT or CHANNEL:CHAT:THREAD.")
@click.argument("name")
@what_argument
def bind(home: Path | None, chat: bool, name: str, what: str) -> None:
    """Give a conversation another name, or let a chat go on in it."""
    from legato.cli import care  # noqa: PLC0415 - as above

    care.bind(home, name, what, chat=chat)


@cli.command()
@home_option
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write to this file.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "markdown", "html"]),
    help="JSON lines, which can be imported, or a page to read (by the file's ending when not given).",
)
@click.option("--all", "everything", is_flag=True, help="Everything that is yours.")
@click.option("--force", is_flag=True, help="Replace a file that is there already.")
@click.argument("what", required=False)
def export(
    home: Path | None, output: Path | None, form: str | None, everything: bool, force: bool, what: str | None
) -> None:
    """Write a conversation with all there is to it; `import` takes it back."""
    from legato.cli import care  # noqa: PLC0415 - as above

    care.export(home, what, everything=everything, form=form, output=output, force=force)


readable_file = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


@cli.command("import")
@home_option
@json_option
@click.argument("files", nargs=-1, required=True, type=readable_file)
def import_files(home: Path | None, as_json: bool, files: tuple[Path, ...]) -> None:
    """Take in conversations that were exported, under the ids and names that they had."""
    from legato.cli import care  # noqa: PLC0415 - as above

    care.import_files(home, files, as_json=as_json)


# -- channels


@cli.command()
@home_option
@click.option("--principal", help="Whose conversations they use; your own when not given.")
@click.option("--remove", metavar="CHANNEL/SENDER", help="Make them a stranger again.")
@json_option
@click.argument("code", required=False)
def pair(home: Path | None, principal: str | None, remove: str | None, as_json: bool, code: str | None) -> None:
    """Let the person who was given a code speak on a channel; without one, list who does."""
    from legato.cli import care  # noqa: PLC0415 - as above

    care.pair(home, code, principal=principal, remove=remove, as_json=as_json)


@cli.command()
@home_option
@click.option("--resend", type=int, metavar="NUMBER", help="Try this one again.")
@json_option
def deliveries(home: Path | None, resend: int | None, as_json: bool) -> None:
    """List the answers that did not arrive on a channel, or may not have."""
    from legato.cli import care  # noqa: PLC0415 - as above

    care.deliveries(home, resend=resend, as_json=as_json)


# -- settings


@cli.group()
def config() -> None:
    """Show and check the configuration."""


@config.command("show")
@home_option
@json_option
def show_config(home: Path | None, as_json: bool) -> None:
    """Print every setting, its value, and where it came from. Secrets are not shown."""
    from legato.cli import settings  # noqa: PLC0415 - as above

    settings.show(home, as_json=as_json)


@config.command("check")
@home_option
def check_config(home: Path | None) -> None:
    """Say whether the gateway could start with this configuration."""
    from legato.cli import settings  # noqa: PLC0415 - as above

    settings.check(home)


# -- keys


@cli.group()
def key() -> None:
    """Make, list and revoke API keys."""


@key.command("create")
@home_option
@click.option("--principal", help="Whose conversations it opens; your own when not given.")
@click.option("--scope", "scopes", type=click.Choice(["admin"]), multiple=True, help="What else it may do.")
@json_option
@click.argument("name")
def create_key(home: Path | None, principal: str | None, scopes: tuple[str, ...], as_json: bool, name: str) -> None:
    """Make a key and print it, this once."""
    from legato.cli import care  # noqa: PLC0415 - as above

    care.create_key(home, name, principal=principal, scopes=scopes, as_json=as_json)


@key.command("list")
@home_option
@json_option
def list_keys(home: Path | None, as_json: bool) -> None:
    """List keys; never the keys themselves."""
    from legato.cli import care  # noqa: PLC0415 - as above

    care.list_keys(home, as_json=as_json)


@key.command("revoke")
@home_option
@click.argument("name")
def revoke_key(home: Path | None, name: str) -> None:
    """Let the keys of a name open nothing any more."""
    from legato.cli import care  # noqa: PLC0415 - as above

    care.revoke_key(home, name)


if __name__ == "__main__":
    cli()
