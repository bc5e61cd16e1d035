"""The drill itself: real gateways, real kills, and a store that someone damaged on purpose."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import asyncpg
import pytest

from legato.cli.prove import drill
from legato.cli.prove.fleet import Fleet

BOUND = 400.0
ENVIRON = {k: v for k, v in os.environ.items() if not k.startswith("LEGATO_")}


def prove(*options: str) -> "subprocess.CompletedProcess[str]":
    """`legato prove`, as a person runs it."""
    command = [sys.executable, "-m", "legato.cli.main", "prove", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=BOUND, env=ENVIRON, check=False)


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_nothing_is_lost_while_gateways_are_killed(
    database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Everything that was tried is in the table and in the JSON, and the exit code is 0."""
    url = request.getfixturevalue("pg_url") if database == "postgres" else ""
    minutes = "5" if request.config.getoption("--long") else "0.4" if url else "0.6"
    options = ("--database-url", url) if url else ()
    done = prove("--minutes", minutes, "--seed", "11", "--json", str(tmp_path / "told.json"), *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("Nothing was lost, doubled, reordered or repeated")
    told = json.loads((tmp_path / "told.json").read_text())
    assert (told["seed"], told["held"], told["findings"]) == (11, True, [])
    assert told["nodes"] == (2 if url else 1)
    assert all(row["acknowledged"] > 0 for row in told["ways"].values())
    assert told["faults"]["kill"] >= 2
    assert told["all"]["cut"] > 0
    assert told["all"]["doubled on purpose"] > 0
    assert told["streams"]["cut by the client"] > 0
    assert told["tools"]["ran"] > 0
    assert told["recovery"]["node ready again"]["times"] >= 2
    if url:
        assert asyncio.run(_schemas(url)) == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--json", "/no/where/told.json"), "/no/where/told.json cannot be written"),
        (("--database-url", "mysql://db.example"), "must be a URL that begins with postgresql://"),
    ],
)
def test_what_cannot_work_is_told_before_the_drill(options: tuple[str, ...], told: str) -> None:
    """Not after ten minutes of it."""
    done = prove("--minutes", "5", *options)
    assert (done.returncode, done.stdout) == (1, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


async def _schemas(url: str) -> list[str]:
    """What a drill left behind."""
    connection = await asyncpg.connect(url)
    rows = await connection.fetch("select nspname from pg_namespace where nspname like 'legato_prove%'")
    await connection.close()
    return [row[0] for row in rows]


def test_a_store_that_lost_an_entry_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Someone deletes what was acknowledged, behind the gateway's back: exit code 1, and the table names it."""
    settle_down = drill._settle_down
    lost: list[str] = []

    def damage(fleet: Fleet) -> None:
        for node in fleet.nodes:
            node.drain()
        lost.append(_delete_an_input(fleet.nodes[0].home / "legato.db"))
        settle_down(fleet)

    monkeypatch.setattr(drill, "_settle_down", damage)
    with pytest.raises(SystemExit) as end:
        drill.run_prove(minutes=0.05, seed=5, nodes=None, database_url=None, json_to=None, keep=False)
    assert end.value.code == 1
    *table, last = capsys.readouterr().out.splitlines()
    assert [line for line in table if line.startswith(f"  lost: input {lost[0]} ")]
    assert [line for line in table if line.startswith("  verify: ")]
    assert last.startswith("The promise was broken:")
    assert "lost (acknowledged and not there)" in last


def _delete_an_input(path: Path) -> str:
    """Delete the entry of one plain input; its key."""
    connection = apsw.Connection(str(path))
    for (name,) in list(connection.execute("select name from sqlite_master where type = 'trigger'")):
        connection.execute(f'drop trigger "{name}"')
    rows = connection.execute("select conversation_id, seq, body from entries where kind = 'message' order by seq")
    for conversation, seq, body in list(rows):
        text = body.decode() if isinstance(body, bytes) else body
        if '"role":"user"' in text and "reply only [" in text:
            connection.execute("pragma foreign_keys = off")
            connection.execute("delete from entries where conversation_id = ? and seq = ?", (conversation, seq))
            connection.close()
            return str(text.split("reply only [")[1].split("]")[0])
    raise AssertionError("no input to delete")


def test_ctrl_c_ends_it_early_with_a_report_and_leaves_no_process() -> None:
    """The rest is still checked; nothing that it started lives on."""
    command = [sys.executable, "-m", "legato.cli.main", "prove", "--minutes", "30", "--seed", "3", "--json", "-"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRON)
    try:
        children: list[int] = []
        while not children:
            assert process.poll() is None
            children = _children(process.pid)
        assert process.stderr is not None
        assert "seed 3" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=BOUND)
    finally:
        process.kill()
    assert process.returncode == 0, err
    told = json.loads(out)
    assert (told["interrupted"], told["held"]) == (True, True)
    assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []


def _children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()]


def test_several_nodes_need_a_database_they_share() -> None:
    """SQLite belongs to one process."""
    done = prove("--nodes", "2")
    assert done.returncode == 1
    assert "--database-url" in done.stderr
