"""Run a command of ours, and end as by `kill -9` just before its nth change of a name in a folder.

python fused.py N FOLDER COMMAND...
"""

import os
import signal
import sys

CHANGES = ("os.link", "os.rename", "os.remove", "shutil.copyfile")


def main() -> None:
    left, folder = int(sys.argv[1]), sys.argv[2]

    def burn(event: str, args: tuple[object, ...]) -> None:
        nonlocal left
        if event in CHANGES and any(str(arg).startswith(folder) for arg in args):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(burn)
    from legato.cli.main import cli  # noqa: PLC0415 - the hook is there first

    cli(sys.argv[3:])


if __name__ == "__main__":
    main()
