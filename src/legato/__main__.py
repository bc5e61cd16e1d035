"""`legato`, and `python -m legato` where its folder is not on the path.

Until the command itself is loaded, Ctrl-C ends the process as it ends any other, not with a traceback.
"""

import signal


def main() -> None:
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where a shell has us ignore it
    if heeded:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from legato.cli.main import cli  # noqa: PLC0415 - as said above

    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli(prog_name="legato")


if __name__ == "__main__":
    main()
