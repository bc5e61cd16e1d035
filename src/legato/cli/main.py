"""`legato`: the commands. What a command needs is imported when it runs, so that `--help` is instant."""

import sys
from pathlib import Path

import click

from legato import __version__
from legato.errors import LegatoError


class Commands(click.Group):
    """Errors of ours are told in a sentence, not in a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except LegatoError as error:
            click.echo(f"legato: {error.message}", err=True)
            sys.exit(1)


home_option = click.option(
    "--home", type=click.Path(path_type=Path), help="Where everything is kept (LEGATO_HOME, default ~/.legato)."
)
database_option = click.option("--database-url", help="A PostgreSQL URL (LEGATO_DATABASE_URL); without it, SQLite.")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="legato")
def cli() -> None:
    """A gateway for AI agents in which a conversation never loses its thread."""


@cli.command()
@home_option
@database_option
@click.option("--host", help="Address to listen on (default 127.0.0.1).")
@click.option("--port", type=int, help="Port to listen on (default 8420).")
def serve(home: Path | None, database_url: str | None, host: str | None, port: int | None) -> None:
    """Run the gateway."""
    from legato.cli.serve import run_server  # noqa: PLC0415 - the server's imports are slow, and only it needs them

    options = {"database.url": database_url, "server.host": host, "server.port": port}
    run_server(home, {name: value for name, value in options.items() if value is not None})


@cli.command()
@home_option
@database_option
def verify(home: Path | None, database_url: str | None) -> None:
    """Prove that the store is whole: check every rule of the schema and of the log."""
    from legato.cli.verify import run_verify  # noqa: PLC0415 - as above

    run_verify(home, {"database.url": database_url} if database_url is not None else {})
