"""`python -m legato`: the command, where its folder is not on the path."""

from legato.cli.main import cli

cli(prog_name="legato")
