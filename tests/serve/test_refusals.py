"""What cannot work is refused at the start: exit code 1, one sentence that says what to do, and nothing is touched."""

import ctypes
import os
import socket
import sqlite3
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest

from serve.conftest import Serve
from serve.process import run

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1


def as_anybody() -> None:
    """Let permissions hold even for root: without this capability it is bound by them like anyone."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


def refusal(home: Path, *options: str, **how: object) -> str:
    """Start a gateway that must refuse to run; returns its sentence."""
    code, said = run("serve", "--home", str(home), *(options or ("--port", "0")), **how)  # type: ignore[arg-type]
    assert code == 1, said
    assert "Traceback" not in said
    [line] = said.strip().splitlines()
    assert line.startswith("legato: ")
    return line


def test_a_second_gateway_on_the_same_home_is_told_who_holds_it(serve: Serve, home: Path) -> None:
    """It would be two writers on one file; the first does not notice."""
    first = serve()
    line = refusal(home)
    assert f"process {first.process.pid}" in line
    assert str(home) in line
    assert "--home" in line
    assert first.say("hello").status == 200


def test_a_second_gateway_on_the_same_home_and_port_is_told_of_the_home(serve: Serve, home: Path) -> None:
    """Of two reasons the home is the better explanation: the port is taken by ourselves."""
    first = serve()
    line = refusal(home, "--port", first.url.rpartition(":")[2])
    assert f"process {first.process.pid}" in line


def test_a_home_is_free_again_after_kill_9(serve: Serve) -> None:
    """The lock goes with the process that held it, whatever its file says."""
    serve().kill()
    assert serve().get("/readyz").status == 200


def test_a_port_that_is_taken_is_told_with_advice(home: Path) -> None:
    """The address, and how to choose another."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        line = refusal(home, "--port", str(port))
    assert f"127.0.0.1:{port}" in line
    assert "--port" in line


@pytest.mark.parametrize("begun", [False, True], ids=["empty", "with-a-database"])
def test_a_home_that_cannot_be_written_is_told(serve: Serve, home: Path, begun: bool) -> None:
    """Never silently in memory: it does not start."""
    if begun:
        serve().kill()
    else:
        home.mkdir()
    before = contents(home)
    home.chmod(0o500)
    for path in home.iterdir():
        path.chmod(0o400)
    try:
        line = refusal(home, prepare=as_anybody)
    finally:
        home.chmod(0o700)
    assert str(home) in line
    assert "permission" in line.lower()
    assert contents(home) == before


def test_a_home_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    """Its parent may not be written, or a file stands where a folder should be."""
    (tmp_path / "parent").mkdir(mode=0o500)
    line = refusal(tmp_path / "parent" / "home", prepare=as_anybody)
    assert str(tmp_path / "parent" / "home") in line
    assert "LEGATO_HOME" in line
    (tmp_path / "file").write_text("")
    assert "Not a directory" in refusal(tmp_path / "file" / "home")


@pytest.mark.parametrize(
    "content", [b"not a database at all, " * 400, b"SQLite format 3\0" + b"\xff" * 8000], ids=["text", "broken"]
)
def test_a_file_that_is_no_database_is_told_and_kept(home: Path, content: bytes) -> None:
    """Someone may still need what is in it."""
    home.mkdir()
    (home / "legato.db").write_bytes(content)
    line = refusal(home)
    assert str(home / "legato.db") in line
    assert "backup" in line
    assert (home / "legato.db").read_bytes() == content
    code, said = run("backup", "--home", str(home), str(home.parent / "copy"))
    assert (code, "Traceback" in said) == (1, False)
    assert "The file is damaged" in said


def test_a_damaged_database_is_told_and_kept(serve: Serve, home: Path) -> None:
    """Pages in the middle are overwritten: the schema can no longer be read."""
    serve().kill()
    checkpoint(home)
    path = home / "legato.db"
    damaged = bytearray(path.read_bytes())
    damaged[100:4096] = os.urandom(3996)
    path.write_bytes(damaged)
    line = refusal(home)
    assert str(path) in line
    assert path.read_bytes() == damaged


def test_a_database_of_another_program_is_told_and_kept(home: Path) -> None:
    """A SQLite file is not enough: it has to be ours."""
    home.mkdir()
    with closing(sqlite3.connect(home / "legato.db")) as other, other:
        other.execute("create table recipes (id integer)")
    other.close()
    before = (home / "legato.db").read_bytes()
    assert "another program" in refusal(home)
    assert (home / "legato.db").read_bytes() == before


def test_a_schema_from_the_future_is_refused_by_name(serve: Serve, home: Path) -> None:
    """A newer Legato made it; this one would not understand what it does."""
    serve().kill()
    with closing(sqlite3.connect(home / "legato.db")) as later, later:
        later.execute("insert into schema_version values (9999, 'telepathy')")
    later.close()
    checkpoint(home)
    before = (home / "legato.db").read_bytes()
    line = refusal(home)
    assert "9999 ('telepathy')" in line
    assert "Upgrade Legato" in line
    assert (home / "legato.db").read_bytes() == before


async def test_a_schema_from_the_future_on_postgres_is_refused_by_name(home: Path, pg_url: str) -> None:
    """The same on the other database."""
    connection = await asyncpg.connect(pg_url)
    await connection.execute("create table schema_version (version bigint primary key, name text not null)")
    await connection.execute("insert into schema_version values (9999, 'telepathy')")
    line = refusal(home, env={"LEGATO_DATABASE_URL": pg_url})
    assert "9999 ('telepathy')" in line
    tables = await connection.fetch("select tablename from pg_tables where schemaname = 'public'")
    await connection.close()
    assert [name for (name,) in tables] == ["schema_version"]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://someone:s3cret@127.0.0.1:1/legato",
        "postgresql://someone:s3cret@no.such.host.invalid/legato",
        "postgresql://someone:s3cret@127.0.0.1:port/legato",
        "postgresql://someone:s3cret@[::1/legato",
        "mysql://someone:s3cret@127.0.0.1/legato",
    ],
)
def test_a_database_that_cannot_be_reached_is_told_without_its_password(home: Path, url: str) -> None:
    """The sentence is copied into tickets and chats."""
    line = refusal(home, env={"LEGATO_DATABASE_URL": url})
    assert "s3cret" not in line
    assert "database" in line.lower() or "PostgreSQL" in line


def test_an_unknown_setting_names_the_nearest_known_one(home: Path) -> None:
    """In the file and in the environment alike: a typo must not be silence."""
    line = refusal(home, env={"LEGATO_SERVER__PROT": "1"})
    assert "'server.port'" in line
    assert "LEGATO_SERVER__PROT" in line
    home.mkdir()
    (home / "legato.toml").write_text("[worker]\nleese = 3\n")
    line = refusal(home)
    assert "'worker.lease'" in line
    assert "legato.toml" in line


def test_a_variable_that_sets_nothing_is_named_by_the_check_the_doctor_and_the_log(serve: Serve, home: Path) -> None:
    """It may be somebody else's, so it is no error."""
    typo = {"LEGATO_SERVER_PORT": "1"}
    server = serve(env=typo)
    [warned] = server.logged("variables set nothing")
    assert (warned["variables"], warned["nearest"]) == (["LEGATO_SERVER_PORT"], ["LEGATO_SERVER__PORT"])
    for command in (("config", "check"), ("doctor", "--offline")):
        code, said = run(*command, "--home", str(home), env=typo)
        assert (code, "LEGATO_SERVER_PORT sets nothing. Did you mean LEGATO_SERVER__PORT?" in said) == (0, True)
    code, said = run("config", "check", "--home", str(home))
    assert (code, said) == (0, "The configuration is sound.\n")


def test_a_value_that_does_not_fit_is_told_with_its_origin(home: Path) -> None:
    """Which setting, and where it was set."""
    line = refusal(home, "--host", "127.0.0.1", env={"LEGATO_SERVER__PORT": "high"})
    assert "server.port" in line
    assert "LEGATO_SERVER__PORT" in line


def test_a_home_whose_path_is_no_text_is_told(tmp_path: Path) -> None:
    """Not every name that a disk can hold can be told to a database."""
    home = tmp_path / "caf\udce9"
    assert "--home" in refusal(home)
    code, said = run("doctor", env={"LEGATO_HOME": str(home)})
    assert (code, "Traceback" in said) == (1, False)
    assert not home.exists()


@pytest.mark.parametrize("port", ["70000", "-1"])
def test_a_port_that_is_none_is_told_with_what_is_allowed(home: Path, port: str) -> None:
    line = refusal(home, "--port", port)
    assert "server.port" in line
    assert "from 0 to 65535" in line
    assert "command line" in line


@pytest.mark.parametrize("host", ["no.such.host.invalid", "x" * 70 + ".example", "192.0.2.1"])
def test_a_host_that_is_none_is_told(home: Path, host: str) -> None:
    """And what to choose: the port is not the trouble."""
    line = refusal(home, "--host", host, "--port", "0")
    assert f"Cannot listen on {host}" in line
    assert ("--host" in line, "--port" in line) == (True, False)


@pytest.mark.parametrize(
    "content", [b"caf\xe9", b"two\nlines of no key at all", None], ids=["not-text", "lines", "a-folder"]
)
def test_a_key_file_that_holds_no_key_is_told_by_everybody(home: Path, content: bytes | None) -> None:
    home.mkdir(mode=0o700)
    path = home / "key"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
        path.chmod(0o600)
    line = refusal(home)
    assert str(path) in line
    assert "makes another" in line
    code, said = run("ls", "--home", str(home))
    assert (code, "Traceback" in said, str(path) in said) == (1, False, True)
    code, said = run("doctor", "--offline", "--home", str(home))
    assert (code, "Traceback" in said) == (1, False)
    assert [line.split()[0] for line in said.splitlines() if line.split()[1] == "key"] == ["problem"]


def test_a_key_that_can_be_guessed_opens_nothing(serve: Serve, home: Path) -> None:
    """Whatever wrote it there; without the file a new one is made."""
    home.mkdir(mode=0o700)
    (home / "key").write_text("changeme\n")
    line = refusal(home)
    assert "Remove the file and start `legato serve` again" in line
    assert (str(home / "key") in line, "changeme" in line) == (True, False)
    (home / "key").unlink()
    assert len(serve().key) > 40


@pytest.mark.parametrize("key", ["two\nlines", "ends\n", "a space", "ключ"])
def test_a_key_that_cannot_be_sent_is_told_without_itself(home: Path, key: str) -> None:
    code, said = run("ls", env={"LEGATO_HOME": str(home), "LEGATO_API_KEY": key, "LEGATO_URL": "http://127.0.0.1:1"})
    assert (code, "Traceback" in said, key in said) == (1, False, False)
    assert "LEGATO_API_KEY" in said


@pytest.mark.parametrize("url", ["nowhere", "http://", "http://127.0.0.1:port", "ftp://127.0.0.1", "http://[::1"])
def test_an_address_that_is_none_is_told(home: Path, url: str) -> None:
    code, said = run("ls", env={"LEGATO_HOME": str(home), "LEGATO_URL": url})
    assert (code, "Traceback" in said) == (1, False)
    assert "is no address of a gateway" in said
    code, said = run("config", "check", env={"LEGATO_HOME": str(home), "LEGATO_URL": url})
    assert (code, "is no address of a gateway" in said) == (1, True)


def contents(home: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in home.iterdir()}


def checkpoint(home: Path) -> None:
    """Bring everything into the one file."""
    with closing(sqlite3.connect(home / "legato.db")) as connection, connection:
        connection.execute("pragma wal_checkpoint(truncate)")
    connection.close()
