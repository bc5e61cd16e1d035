"""What a process of its own does with a SQLite file, for tests that need one: python child.py VERB PATH …"""

import asyncio
import os
import resource
import sys
from pathlib import Path

from legato.domain.entries import Message, Text, draft
from legato.domain.handles import Slug
from legato.domain.ids import NodeId, PrincipalId
from legato.domain.turns import Input, Outcome, Submission
from legato.errors import StoreUnavailable
from legato.store import admission, directory, log, nodes, turns
from legato.store.sqlite import Sqlite

ALICE, NODE = PrincipalId("alice"), NodeId("node_child")


def tell(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def speak(db: Sqlite, name: str) -> None:
    """One whole turn whose input is known by its name; says what was acknowledged as it is."""
    said = draft(Message("user", (Text(name + "." * 10_000),)), name)
    submission = Submission(principal=ALICE, target=Slug(name), input=Input((said,)), dedup_key=name)
    admitted = await db.write(admission.admit, submission, NODE)
    tell("said", name)
    assert admitted.lease is not None
    await db.write(turns.finish, admitted.lease, Outcome(status="done"))
    tell("done", name)


async def begin(path: Path) -> Sqlite:
    db = await Sqlite.open(path)
    await db.write(directory.add_principal, ALICE)
    await db.write(nodes.start, NODE, 1e6, alone=True)
    return db


async def open_it(path: Path) -> None:
    """Open and say how that went."""
    try:
        await (await Sqlite.open(path)).close()
        tell("opened")
    except StoreUnavailable as error:
        tell("refused:", error.message)


async def hold(path: Path) -> None:
    """Own the file until someone ends this process."""
    db = await Sqlite.open(path)
    tell("holding")
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await db.close()


async def fill(path: Path, limit: int) -> None:
    """Write until the disk takes no more, many at a time; then there is room again."""
    db = await begin(path)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))

    async def one(name: str) -> bool:
        try:
            await speak(db, name)
            return True
        except StoreUnavailable as error:
            tell("refused:", error.message)
            return False

    number = 0
    while all(await asyncio.gather(*(one(f"msg_{number + i}") for i in range(5)))):
        number += 5
    conversation = await db.read(directory.find, ALICE, Slug("msg_0"))
    tell("read", (await db.read(log.read_transcript, conversation.id))[0].id)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    if await one("msg_after"):
        tell("recovered")
    await db.close()


async def overflow(path: Path, limit: int) -> None:
    """Write much into the journal, and leave when there is no room to move it into the file."""
    db = await begin(path)
    for i in range(100):
        await speak(db, f"msg_{i}")
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    await db.close()
    tell("left")


def confined() -> None:
    """For root, permissions are no obstacle: give that up (CAP_DAC_OVERRIDE) and begin again."""
    import ctypes  # noqa: PLC0415 - only here

    if os.geteuid() == 0 and ctypes.CDLL(None, use_errno=True).prctl(24, 1, 0, 0, 0) != 0:
        tell("cannot drop the capability")
        sys.exit(3)
    os.execv(sys.executable, [sys.executable, __file__, *sys.argv[2:]])


if __name__ == "__main__":
    verb, *arguments = sys.argv[1:]
    if verb == "confined":
        confined()
    path, *limits = arguments
    asyncio.run(
        {"open": open_it, "hold": hold, "fill": fill, "overflow": overflow}[verb](Path(path), *map(int, limits))
    )
