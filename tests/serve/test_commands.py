"""The commands of a script or an administrator: over a gateway that runs, or over a private one when none does."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import click
import httpx
import pexpect
import pytest

import forked
from api.upstream import open_upstream
from legato.cli.main import cli
from serve.conftest import Serve
from serve.process import BOUND, LEGATO, Env, Server, environment


class Said:
    """What a command did."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def legato(home: Path, *command: str, given: str = "", env: Env | None = None) -> Said:
    settings = {"LEGATO_HOME": str(home), **(env or {})}
    return Said(forked.run([LEGATO, *command], env=environment(settings), given=given))


def test_ask_prints_the_answer_and_nothing_else(serve: Serve, home: Path) -> None:
    """On its own, and going on with the newest conversation or with one that is named."""
    serve()
    assert legato(home, "ask", "reply only hello").out == "hello\n"
    first = legato(home, "ask", "--json", "my cat is called Miso").json
    legato(home, "ask", "reply only something else")
    said = legato(home, "ask", "-r", first["conversation"]["id"][:20], "what is it called?")
    assert (said.code, said.err) == (0, "")
    assert 'seen: 3 messages, first "my cat is called Miso"' in said.out
    assert 'seen: 5 messages, first "my cat is called Miso"' in legato(home, "ask", "-c", "and again?").out
    assert legato(home, "ask", given="reply only piped\n").out == "piped\n"
    assert legato(home, "ask", "reply only one", given="and both").out == "one\n\nand both\n"


def test_ask_says_why_it_failed_with_its_exit_code(serve: Serve, home: Path) -> None:
    serve()
    said = legato(home, "ask", "fail 9 times")
    assert said.code == 1
    assert "asked to fail" in said.err
    told = legato(home, "ask", "--json", "fail 9 times")
    assert (told.code, told.json["status"]) == (1, "failed")
    assert "asked to fail" in told.err
    assert legato(home, "ask").code == 1
    assert legato(home, "ask", "-r", "nobody", "hi").code == 1
    assert legato(home, "ls", "--json").json != []


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["plain", "json"])
def test_ask_says_that_its_answer_was_stopped(serve: Serve, home: Path, options: tuple[str, ...]) -> None:
    """A script does not take what was written until then for the answer."""
    server = serve()
    legato(home, "ask", "--json", "hello")
    with subprocess.Popen(
        [LEGATO, "ask", "-c", *options, "sleep 60"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment({"LEGATO_HOME": str(home)}),
    ) as asking:
        turn = server.logged("turn started", 2)[-1]["turn"]
        key = (home / "key").read_text().strip()
        httpx.post(f"{server.url}/v1/responses/{turn}/cancel", headers={"Authorization": f"Bearer {key}"})
        _, told = asking.communicate(timeout=BOUND)
    assert (asking.returncode, told) == (1, b"legato: The answer was stopped.\n")


@pytest.fixture
def told_a_tale(serve: Serve, home: Path) -> Iterator[tuple[Server, "subprocess.Popen[bytes]"]]:
    """A gateway, and an `ask` that has printed the first word of an answer which does not end."""
    with open_upstream() as provider:
        server = serve(env=provider.settings)
        provider.talk().say("Once upon")
        command = [LEGATO, "ask", "tell me a tale"]
        env = environment({"LEGATO_HOME": str(home)})
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as asking:
            assert asking.stdout is not None
            assert asking.stdout.read(4) == b"Once"
            yield server, asking


def test_ask_says_that_the_turn_goes_on_where_the_gateway_went(
    told_a_tale: tuple[Server, "subprocess.Popen[bytes]"],
) -> None:
    """And where to see it."""
    server, asking = told_a_tale
    place = server.logged("turn started", 1)[-1]["conversation"]
    server.kill()
    _, told = asking.communicate(timeout=BOUND)
    assert asking.returncode == 1
    assert told.endswith(f"see it with: legato show {place}\n".encode())


def test_whoever_leaves_ask_stops_the_turn(told_a_tale: tuple[Server, "subprocess.Popen[bytes]"]) -> None:
    """As Ctrl-C does in a chat: nobody waits for it any more."""
    server, asking = told_a_tale
    asking.send_signal(signal.SIGINT)
    _, told = asking.communicate(timeout=BOUND)
    assert (asking.returncode, told) == (130, b"\n")
    assert server.logged("turn ended", 1)[-1]["status"] == "cancelled"


def test_ask_parts_what_was_said_before_a_tool_from_what_was_said_after_it(serve: Serve, home: Path) -> None:
    """Each message of an answer stands alone."""
    with open_upstream() as provider:
        serve(env=provider.settings)
        looking, found = provider.talk(), provider.talk()
        looking.say("Let me look.")
        looking.call("now", "{}")
        looking.end("tool_calls")
        found.say("It is")
        found.say(" late.")
        found.end()
        assert legato(home, "ask", "what time is it?").out == "Let me look.\n\nIt is late.\n"


def test_ask_says_that_its_answer_was_cut_off(serve: Serve, home: Path) -> None:
    with open_upstream() as provider:
        serve(env=provider.settings)
        talk = provider.talk()
        talk.say("Once upon")
        talk.end("length")
        said = legato(home, "ask", "tell me a tale")
        shown = legato(home, "show", "tell me").out
        page = legato(home, "export", "tell me", "--format", "markdown").out
    assert (said.code, said.out) == (1, "Once upon\n")
    assert said.err == "legato: The answer is not whole: max_output_tokens.\n"
    assert "assistant (cut off): Once upon" in shown
    assert ", cut off\n\nOnce upon" in page


def test_ask_says_who_answered_where_nobody_is_called_so(serve: Serve, home: Path) -> None:
    """The gateway lets the default agent answer, for the sake of programs; a person is told."""
    serve()
    said = legato(home, "ask", "-m", "dmeo", "reply only hello")
    assert (said.code, said.out) == (0, "hello\n")
    assert said.err == "legato: nobody is called 'dmeo'; default answered\n"
    for known in ("demo", "default"):
        assert legato(home, "ask", "-m", known, "reply only hello").err == ""


def test_what_is_no_text_is_told(serve: Serve, home: Path) -> None:
    """A shell hands on any bytes."""
    serve()
    for command in (("ask",), ("ls", "-q"), ("search",), ("show",), ("bind", "name"), ("key", "create")):
        said = legato(home, *command, "caf\udce9")
        assert (said.code, said.err) == (1, "legato: What was given is no text: it is not UTF-8.\n")
    done = subprocess.run(
        [LEGATO, "ask"],
        input=b"caf\xe9",
        capture_output=True,
        timeout=BOUND,
        env=environment({"LEGATO_HOME": str(home), "PYTHONIOENCODING": "utf-8:strict"}),
        check=False,
    )
    assert (done.returncode, b"it is not UTF-8" in done.stderr, b"Traceback" in done.stderr) == (1, True, False)


def test_the_newest_and_another_cannot_both_be_gone_on_with(serve: Serve, home: Path) -> None:
    """Whatever was meant, nothing is said in the other; nor is a name that is empty a new conversation."""
    serve().say("hello")
    for command in (("ask", "-c", "-r", "talk", "hi"), ("chat", "-c", "-r", "talk"), ("-c", "-r", "talk")):
        said = legato(home, *command)
        assert (said.code, "give one of them" in said.err) == (2, True)
    assert legato(home, "ask", "-r", "", "hi").code == 1
    assert [row["name"] for row in legato(home, "ls", "--json").json] == ["talk"]
    assert len(legato(home, "show", "talk", "--json").json["items"]) == 2


def test_the_command_is_also_a_module() -> None:
    """For whoever has Python on the path, and not its scripts."""
    command = [sys.executable, "-m", "legato", "ls", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND, env=environment(), check=False)
    assert (done.returncode, done.stdout.startswith("Usage: legato ls")) == (0, True)


def test_ctrl_c_while_the_command_is_loaded_is_no_traceback(tmp_path: Path) -> None:
    """It ends as any program does that Ctrl-C ends; a shell tells it by 130."""
    (tmp_path / "click.py").write_text("import sys\nprint('loading', flush=True)\nsys.stdin.read()\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    with subprocess.Popen(
        [sys.executable, "-m", "legato", "ls"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment({"PYTHONPATH": path}),
    ) as loading:
        assert loading.stdout is not None
        assert loading.stdout.readline() == b"loading\n"
        loading.send_signal(signal.SIGINT)
        _, told = loading.communicate(timeout=BOUND)
    assert (loading.returncode, told) == (-signal.SIGINT, b"")


def test_without_a_gateway_a_private_one_serves_the_command(home: Path) -> None:
    """It says so, nothing is lost, and the home is free afterwards."""
    said = legato(home, "ask", "my cat is called Miso")
    assert said.code == 0
    assert "a private one serves this command" in said.err
    again = legato(home, "ask", "-c", "what is it called?")
    assert 'seen: 3 messages, first "my cat is called Miso"' in again.out
    assert legato(home, "verify").code == 0


def test_a_private_gateway_is_reached_from_this_machine_alone(home: Path) -> None:
    """Wherever `legato serve` is to listen."""
    with subprocess.Popen(
        [LEGATO, "ask", "sleep 60"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment({"LEGATO_HOME": str(home), "LEGATO_SERVER__HOST": "0.0.0.0", "LEGATO_SERVER__DRAIN": "0"}),
    ) as asking:
        deadline = time.monotonic() + BOUND
        while not (home / "url").exists() or not (home / "url").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        place = (home / "url").read_text()
        asking.kill()
    assert place.startswith("http://127.0.0.1:")


def test_where_there_is_nothing_a_command_says_so(serve: Serve, home: Path) -> None:
    """And what would help; a script reads an empty list."""
    serve()
    nothing = legato(home, "ls")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "There is no conversation yet.\n")
    assert legato(home, "ls", "--json").out == "[]\n"
    nobody = legato(home, "pair", "--remove", "mine")
    assert (nobody.code, "CHANNEL/SENDER" in nobody.err) == (1, True)
    scope = legato(home, "key", "create", "phone", "--scope", "amdin")
    assert (scope.code, "admin" in scope.err) == (2, True)


def test_a_gateway_that_was_killed_is_not_waited_for(serve: Serve, home: Path) -> None:
    """The home still says where it was."""
    serve().kill()
    assert legato(home, "ask", "reply only hello").out == "hello\n"


def test_a_gateway_elsewhere_is_named_by_its_url_and_key(serve: Serve, home: Path, tmp_path: Path) -> None:
    server = serve()
    key = (home / "key").read_text().strip()
    elsewhere = {"LEGATO_URL": server.url, "LEGATO_API_KEY": key}
    assert legato(tmp_path / "other", "ask", "reply only hello", env=elsewhere).out == "hello\n"
    wrong = legato(tmp_path / "other", "ls", env={**elsewhere, "LEGATO_API_KEY": "wrong"})
    assert wrong.code == 1
    assert "set LEGATO_API_KEY" in wrong.err
    legato(tmp_path / "third", "ls")
    wrong = legato(tmp_path / "third", "ls", env={"LEGATO_URL": server.url})
    assert (wrong.code, "set LEGATO_API_KEY" in wrong.err, "delete" in wrong.err) == (1, True, False)
    nobody = legato(tmp_path / "other", "ls", env={"LEGATO_URL": "http://127.0.0.1:1"})
    assert (nobody.code, "does not answer" in nobody.err, "check LEGATO_URL" in nobody.err) == (1, True, True)


@pytest.mark.parametrize("body", [b'{"object": "list", "data": []}', b"<!DOCTYPE html><p>Welcome"])
@pytest.mark.parametrize(
    "command", ["ls", "ask hello", "show x", "stats", "key list", "search x", "export --all", "verify"]
)
def test_what_is_no_gateway_is_told_from_one(tmp_path: Path, command: str, body: bytes) -> None:
    """Something else may listen at the address, and answer whatever it is asked."""

    class Else(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Else) as other:
        Thread(target=other.serve_forever).start()
        url = f"http://127.0.0.1:{other.server_port}"
        try:
            said = legato(tmp_path, *command.split(), env={"LEGATO_URL": url, "LEGATO_API_KEY": "any"})
        finally:
            other.shutdown()
    assert (said.code, said.out) == (1, "")
    assert "is no Legato gateway" in said.err
    assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize("path", ["", "/", "/v1", "/team/legato", "/team/legato/v1/"])
def test_a_gateway_under_a_path_is_asked_there(tmp_path: Path, path: str) -> None:
    """A proxy may have it under one; and the address that OpenAI's clients are given will do."""
    asked: list[str] = []

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path.partition("?")[0])
            told = b'{"object": "list", "data": [], "has_more": false}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(told)))
            self.send_header("X-Request-Id", "req_of_the_gateway_behind_it")
            self.end_headers()
            self.wfile.write(told)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        Thread(target=proxy.serve_forever).start()
        url = f"http://127.0.0.1:{proxy.server_port}{path}"
        try:
            said = legato(tmp_path / "home", "ls", "--json", env={"LEGATO_URL": url, "LEGATO_API_KEY": "any"})
        finally:
            proxy.shutdown()
    assert (said.code, said.json) == (0, [])
    assert set(asked) == {path.rstrip("/").removesuffix("/v1") + "/v1/conversations"}


def test_a_wrong_path_is_told_with_what_named_it(serve: Serve, home: Path) -> None:
    url = f"{serve().url}/nowhere"
    for command in (("ls",), ("doctor", "--offline")):
        said = legato(home, *command, env={"LEGATO_URL": url})
        assert said.code == 1
        assert f"There is no gateway at {url}. Check the path in LEGATO_URL." in said.out + said.err


def test_conversations_are_listed_shown_found_renamed_forked_bound_compacted_exported_and_removed(
    serve: Serve, home: Path
) -> None:
    serve()
    cats = legato(home, "ask", "--json", "reply only 東京の猫").json["conversation"]["id"]
    dogs = legato(home, "ask", "--json", "of dogs").json["conversation"]["id"]
    assert [row["id"] for row in legato(home, "ls", "--json").json] == [dogs, cats]
    assert [line.split()[0] for line in legato(home, "ls").out.splitlines()] == [dogs, cats]

    assert legato(home, "rename", cats[:12], "About cats").code == 0
    shown = legato(home, "show", "About cats").out
    assert "user: reply only 東京の猫" in shown
    assert "assistant: 東京の猫" in shown
    assert legato(home, "show", "--json", "About").json["items"][-1]["role"] == "assistant"
    deadline = time.monotonic() + BOUND
    while not (hits := legato(home, "search", "--json", "京の").json):  # search is filled behind the turns
        assert time.monotonic() < deadline
    assert {hit["conversation"] for hit in hits} == {cats}
    assert "東京の猫" in legato(home, "search", "京の").out
    assert legato(home, "ls", "--json", "-q", "京の").json[0]["id"] == cats

    fork = legato(home, "fork", "About cats").out.strip()
    assert "東京の猫" in legato(home, "show", fork).out
    assert legato(home, "bind", "kittens", fork).code == 0
    assert legato(home, "show", "--json", "kittens").json["id"] == fork
    for n in range(3):
        legato(home, "ask", "-r", "kittens", f"reply only {n} {'purr ' * 60}")
    assert legato(home, "compact", "kittens", "--focus", "purring").code == 0
    assert "summarised: Demo summary" in legato(home, "show", "kittens").out
    lines = legato(home, "export", "kittens").out.splitlines()
    told = [json.loads(line) for line in lines]
    assert [line["id"] for line in told if line["type"] == "conversation" and not line["stump"]] == [fork]
    exported = home.parent / "kittens.jsonl"
    assert legato(home, "export", "kittens", "-o", str(exported)).out == ""
    assert exported.read_text().splitlines() == lines

    assert legato(home, "rm", "kittens").code == 0
    assert fork not in [row["id"] for row in legato(home, "ls", "--json").json]


def test_a_name_that_means_nothing_or_too_much_is_told_with_what_is_near(serve: Serve, home: Path) -> None:
    """And never makes a conversation."""
    serve()
    for title in ("Holiday in Rome", "Holiday in Paris"):
        made = legato(home, "ask", "--json", "hello").json["conversation"]["id"]
        legato(home, "rename", made, title)
    ambiguous = legato(home, "show", "Holiday")
    assert ambiguous.code == 1
    assert "Holiday in Rome" in ambiguous.err
    assert "Holiday in Paris" in ambiguous.err
    unknown = legato(home, "ask", "-r", "Holidy in Rome", "hi")
    assert unknown.code == 1
    assert "Holiday in Rome" in unknown.err
    assert len(legato(home, "ls", "--json").json) == 2


def test_a_title_is_taken_away_and_one_that_is_too_long_is_told(serve: Serve, home: Path) -> None:
    serve().say("hello")
    legato(home, "rename", "talk", "Greetings")
    assert legato(home, "rename", "talk", "").out.endswith(" has no title any more.\n")
    long = legato(home, "rename", "talk", "x" * 501)
    assert (long.code, long.err) == (1, "legato: A title has at most 500 characters; this one has 501.\n")


def test_a_list_that_ends_early_says_so(serve: Serve, home: Path) -> None:
    server = serve()
    for name in ("one", "two", "three"):
        server.say(f"hello {name}", name)
    said = legato(home, "ls", "-n", "2")
    assert len(said.out.splitlines()) == 2
    assert said.err == "These are the newest 2; there are more, which -n NUMBER lists.\n"
    assert len(legato(home, "ls", "-n", "2", "--json").json) == 2
    assert legato(home, "ls", "-n", "3").err == ""
    found = legato(home, "search", "hello", "-n", "1")
    assert (len(found.out.splitlines()), "there are more" in found.err) == (1, True)


def test_one_and_everything_cannot_both_be_meant(serve: Serve, home: Path) -> None:
    serve().say("hello")
    for command in ("export", "purge"):
        said = legato(home, command, "talk", "--all")
        assert (said.code, "give one of them" in said.err) == (1, True)


def test_keys_are_made_listed_used_and_revoked(serve: Serve, home: Path) -> None:
    """A principal of its own sees nothing of yours, and may not administer."""
    server = serve()
    legato(home, "ask", "mine")
    made = legato(home, "key", "create", "phone", "--principal", "bob", "--json").json
    assert made["principal"] == "bob"
    bob = {"LEGATO_URL": server.url, "LEGATO_API_KEY": made["key"]}
    assert legato(home, "ls", "--json", env=bob).json == []
    assert legato(home, "ask", "reply only hello", env=bob).out == "hello\n"
    assert legato(home, "key", "list", env=bob).code == 1
    assert legato(home, "key", "create", "more", env=bob).code == 1
    admin = legato(home, "key", "create", "second", "--scope", "admin").out.strip()
    mine = {"LEGATO_URL": server.url, "LEGATO_API_KEY": admin}
    listed = legato(home, "key", "list", "--json", env=mine).json
    assert [(row["name"], row["principal"]) for row in listed] == [
        ("local", "local"),
        ("phone", "bob"),
        ("second", "local"),
    ]
    assert made["key"] not in legato(home, "key", "list").out
    assert len(legato(home, "ls", "--json", env=mine).json) == 1

    assert legato(home, "key", "revoke", "phone").code == 0
    assert legato(home, "ls", env=bob).code == 1
    assert legato(home, "key", "revoke", "phone").code == 1


def test_the_configuration_is_shown_with_its_origins_and_without_its_secrets(home: Path) -> None:
    home.mkdir()
    (home / "legato.toml").write_text('[models.mine]\nkind = "openai-chat"\napi_key = "sk-secret"\n')
    env = {"LEGATO_SERVER__PORT": "9999", "LEGATO_DATABASE_URL": "postgresql://me:hidden@host/db"}
    said = legato(home, "config", "show", "--json", env=env)
    rows = {row["setting"]: (row["value"], row["from"]) for row in said.json}
    assert rows["server.port"] == (9999, "LEGATO_SERVER__PORT")
    assert rows["server.host"] == ("127.0.0.1", "default")
    assert rows["models.mine.kind"] == ("openai-chat", str(home / "legato.toml"))
    assert "sk-secret" not in said.out
    assert "hidden@" not in said.out
    assert "server.port" in legato(home, "config", "show", env=env).out
    assert legato(home, "config", "check").code == 0
    (home / "legato.toml").write_text('[agents.default]\nmodel = "nobody"\n')
    broken = legato(home, "config", "check")
    assert (broken.code, "nobody" in broken.err) == (1, True)


def _commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    found = []
    for name, command in group.commands.items():
        found.append(((*path, name), command))
        if isinstance(command, click.Group):
            found += _commands(command, (*path, name))
    return found


@pytest.mark.parametrize(("path", "command"), _commands(cli), ids=[" ".join(path) for path, _ in _commands(cli)])
def test_every_command_and_option_explains_itself(path: tuple[str, ...], command: click.Command) -> None:
    """What `--help` does not show, nobody finds."""
    assert command.help, path
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, (path, option.name)
            assert not option.hidden


def test_what_was_removed_comes_back_and_what_is_purged_does_not(serve: Serve, home: Path) -> None:
    """By id, by the name it had, or by its title; and after a purge the files do not contain what was said."""
    serve()
    canary = "the canary sings at midnight"
    made = legato(home, "ask", "--json", canary).json["conversation"]["id"]
    legato(home, "rename", made, "a secret")
    legato(home, "bind", "secrets", made)
    assert canary.encode() in _bytes(home)
    for what in (made, "secrets", "a secret", "a sec"):
        removed = legato(home, "rm", made)
        assert "legato restore" in removed.out
        assert legato(home, "ls", "--json").json == []
        assert [row["id"] for row in legato(home, "restore", "--json").json] == [made]
        assert legato(home, "restore", what).code == 0
        assert [row["name"] for row in legato(home, "ls", "--json").json] == ["secrets"]
    unknown = legato(home, "restore", "nonsense")
    assert unknown.code == 1
    assert "in the trash" in unknown.err
    assert legato(home, "purge").code == 1
    unasked = legato(home, "purge", "secrets")
    assert unasked.code == 1
    assert "--yes" in unasked.err
    purged = legato(home, "purge", "secrets", "--yes")
    assert (purged.code, purged.err) == (0, "")
    assert canary.encode() not in _bytes(home)
    assert legato(home, "restore", made).code == 1


def test_the_whole_trash_is_emptied(serve: Serve, home: Path) -> None:
    serve()
    for text in ("one", "two"):
        legato(home, "rm", legato(home, "ask", "--json", text).json["conversation"]["id"])
    legato(home, "ask", "three")
    assert "2 conversations are gone for good" in legato(home, "purge", "--all", "--yes").out
    assert len(legato(home, "ls", "--json").json) == 1


def _named(home: Path, *names: str) -> dict[str, str]:
    """Conversations of these names; their ids by them."""
    made = {}
    for name in names:
        made[name] = legato(home, "ask", "--json", "hello").json["conversation"]["id"]
        legato(home, "bind", name, made[name])
    return made


def _living(home: Path) -> set[str]:
    return {row["name"] for row in legato(home, "ls", "--json").json}


def _trashed(home: Path) -> set[str]:
    return {row["name"] for row in legato(home, "restore", "--json").json}


def test_a_purge_that_is_repeated_purges_nothing_that_only_begins_so(serve: Serve, home: Path) -> None:
    """A script that tries again loses nothing else; what it would have meant is told, and what was purged is named."""
    serve()
    made = _named(home, "draft-1", "draft-10")
    purged = legato(home, "purge", "--yes", "draft-1")
    assert (purged.code, made["draft-1"] in purged.out, "draft-1\n" in purged.out) == (0, True, True)
    again = legato(home, "purge", "--yes", "draft-1")
    assert (again.code, again.out) == (1, "")
    assert "only the beginning" in again.err
    assert made["draft-10"] in again.err
    assert _living(home) == {"draft-10"}
    assert legato(home, "purge", "draft-1").err == again.err  # nobody can be asked
    assert legato(home, "purge", "--yes", made["draft-10"]).code == 0
    assert _living(home) == set()


def test_a_purge_takes_what_is_called_so_before_what_begins_so(serve: Serve, home: Path) -> None:
    """Also where the one lives and the other is in the trash."""
    serve()
    _named(home, "memo-1", "memo-10")
    legato(home, "rm", "memo-10")
    assert legato(home, "purge", "--yes", "memo-1").code == 0
    assert (_living(home), _trashed(home)) == (set(), {"memo-10"})
    assert legato(home, "purge", "--yes", "memo-1").code == 1
    assert legato(home, "purge", "--yes", "").code == 1
    assert _trashed(home) == {"memo-10"}


def test_what_only_begins_so_is_not_removed_unasked(serve: Serve, home: Path) -> None:
    """Without a terminal it is refused, on one a person is asked; every name of a conversation means it whole."""
    serve()
    made = _named(home, "memo-2", "memo-20")
    legato(home, "bind", "other", made["memo-20"])
    removed = legato(home, "rm", "memo-2")
    assert removed.out.startswith(f"'memo-2' ({made['memo-2']}) is in the trash")
    again = legato(home, "rm", "memo-2")
    assert (again.code, again.out, made["memo-20"] in again.err) == (1, "", True)
    assert _living(home) == {"memo-20"}
    settings = environment({"LEGATO_HOME": str(home), "TERM": "xterm"})
    for answer, code in (("n", 1), ("y", 0)):
        asked = pexpect.spawn(LEGATO, ["rm", "memo-2"], env=settings, timeout=BOUND, encoding="utf-8")
        asked.expect("Put it into the trash")
        assert _living(home) == {"memo-20"}
        asked.sendline(answer)
        asked.expect(pexpect.EOF)
        asked.close()
        assert asked.exitstatus == code
    assert _living(home) == set()
    legato(home, "restore", made["memo-20"])
    assert legato(home, "rm", "other").code == 0


def test_a_trash_of_more_than_is_told_at_once_is_searched_and_emptied(serve: Serve, home: Path) -> None:
    server = serve()
    key = (home / "key").read_text().strip()
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {key}"}, timeout=BOUND) as client:
        for _ in range(1_001):
            made = client.post("/v1/conversations", json={}).json()["id"]
            client.delete(f"/v1/conversations/{made}")
        oldest = client.get("/v1/trash", params={"limit": 1_000}).json()["last_id"]
        [first] = client.get("/v1/trash", params={"after": oldest}).json()["data"]
    assert legato(home, "restore", first["id"]).code == 0
    assert legato(home, "rm", first["id"]).code == 0
    assert legato(home, "purge", "--all", "--yes").out.endswith("\n1001 conversations are gone for good.\n")
    assert legato(home, "restore", "--json").json == []


def _bytes(home: Path) -> bytes:
    return b"".join(path.read_bytes() for path in home.glob("legato.db*"))


def test_what_a_client_was_called_for_is_shown_as_it_was_told(serve: Serve, home: Path) -> None:
    """A call of a custom tool by its text."""
    server = serve()
    patch = [{"type": "custom", "name": "patch"}]
    [call] = server.say('call patch {"input": "+ \\"a\\""}', tools=patch).json["output"]
    server.say([{"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "changed"}], tools=patch)
    assert '  called patch + "a"\n  → changed\n' in legato(home, "show", "talk").out


def test_everything_leaves_one_home_and_lives_on_in_another(serve: Serve, home: Path, tmp_path: Path) -> None:
    """Also when a line is damaged on the way: it is named, the exit code says so, and the rest is there."""
    serve()
    made = legato(home, "ask", "--json", "my cat is called Miso").json["conversation"]["id"]
    legato(home, "bind", "cats", made)
    file, page = tmp_path / "all.jsonl", tmp_path / "cats.html"
    assert legato(home, "export", "--all", "-o", str(file)).out == ""
    assert legato(home, "export", "cats", "-o", str(page)).code == 0
    assert "my cat is called Miso" in page.read_text()
    assert "# " in legato(home, "export", "cats", "--format", "markdown").out
    assert legato(home, "export").code == 1
    other = tmp_path / "other"
    came = legato(other, "import", str(file))
    assert (came.code, came.out) == (0, "1 imported.\n")
    assert legato(other, "import", str(file)).out == "0 imported, 1 already here.\n"
    assert legato(other, "ls", "--json").json[0]["name"] == "cats"
    assert legato(other, "export", "cats").out == legato(home, "export", "cats").out
    damaged = file.read_text().replace('"role":"assistant"', '"role":"ass', 1)
    third = tmp_path / "third"
    came = legato(third, "import", "-", given=damaged)
    assert (came.code, came.out) == (1, "1 imported.\n")
    assert "is damaged" in came.err
    assert "Miso" in legato(third, "show", "cats").out
    (tmp_path / "damaged.jsonl").write_text(damaged)
    came = legato(tmp_path / "fourth", "import", str(file), str(tmp_path / "damaged.jsonl"))
    assert came.out == f"{file}: 1 imported.\n{tmp_path / 'damaged.jsonl'}: 0 imported, 1 already here.\n"
    assert f"{tmp_path / 'damaged.jsonl'}: line " in came.err


def test_a_file_that_is_no_export_is_refused_by_its_first_line(serve: Serve, home: Path, tmp_path: Path) -> None:
    """In one line; what else was given is imported."""
    serve().say("hello")
    good, wrong, empty = tmp_path / "good.jsonl", tmp_path / "wrong.csv", tmp_path / "empty.jsonl"
    legato(home, "export", "talk", "-o", str(good))
    wrong.write_text("name,age\n" * 1_000)
    empty.touch()
    for file, why in ((wrong, "is no export of Legato"), (empty, "is empty")):
        said = legato(home, "import", str(file))
        assert (said.code, said.out, said.err.count("\n")) == (1, "", 1)
        assert f"{file} {why}" in said.err
    assert legato(home, "import", "-").code == 1
    both = legato(tmp_path / "other", "import", str(wrong), str(good))
    assert (both.code, both.out) == (1, f"{good}: 1 imported.\n")


def test_of_many_damaged_lines_the_first_are_named_and_the_rest_counted(
    serve: Serve, home: Path, tmp_path: Path
) -> None:
    serve().say("hello")
    lines = legato(home, "export", "talk").out.splitlines()
    (tmp_path / "damaged.jsonl").write_text("\n".join([lines[0], *["damaged"] * 12, *lines[1:]]))
    said = legato(tmp_path / "other", "import", str(tmp_path / "damaged.jsonl"))
    assert (said.code, said.out) == (1, "1 imported.\n")
    told = [line for line in said.err.splitlines() if "damaged" in line and "private" not in line]
    assert [line.split()[1] for line in told[:5]] == ["2", "3", "4", "5", "6"]
    assert told[5:] == ["and 7 more damaged lines"]


def test_an_export_replaces_a_file_only_on_purpose(serve: Serve, home: Path, tmp_path: Path) -> None:
    """As a backup does."""
    serve().say("hello")
    file = tmp_path / "talk.jsonl"
    file.write_text("precious")
    refused = legato(home, "export", "talk", "-o", str(file))
    assert (refused.code, "--force" in refused.err, file.read_text()) == (1, True, "precious")
    assert legato(home, "export", "talk", "--force", "-o", str(file)).code == 0
    assert file.read_text() == legato(home, "export", "talk").out


def test_a_file_that_cannot_be_written_or_read_is_told(serve: Serve, home: Path, tmp_path: Path) -> None:
    """In a sentence; and nothing half-written is left."""
    serve().say("hello")
    (tmp_path / "folder").mkdir()
    for place in (tmp_path / "no" / "where.jsonl", tmp_path / "folder"):
        said = legato(home, "export", "talk", "-o", str(place))
        assert (said.code, said.err.count("\n")) == (1, 1)
        assert f"{place} cannot be written" in said.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "home"]
    said = legato(home, "import", str(tmp_path / "folder"))
    assert (said.code, "is a directory" in said.err, "Traceback" in said.err) == (2, True, False)


def test_what_others_wrote_changes_no_terminal(serve: Serve, home: Path) -> None:
    """A conversation is one row of a list, whatever its title. A file or a program gets what was written."""
    server = serve()
    nasty = "red \x1b]0;mine\x07\x9b2J \u202eright\u2066, done"
    server.say(f"reply only {nasty}")
    legato(home, "rename", "talk", f"one\n{nasty}")
    settings = environment({"LEGATO_HOME": str(home), "TERM": "xterm"})
    for command in (["ls"], ["show", "talk"], ["search", "done"], ["ask", "-r", "talk", f"reply only {nasty}"]):
        seen = _on_a_terminal(command, settings)
        assert "␛]0;mine␇" in seen
        assert not any(harm in seen for harm in ("\x1b]", "\x07", "\x9b", "\u202e", "\u2066"))
    assert len(legato(home, "ls").out.splitlines()) == 1
    assert legato(home, "ask", f"reply only {nasty}").out == f"{nasty}\n"


def _on_a_terminal(command: list[str], settings: Env) -> str:
    child = pexpect.spawn(LEGATO, command, env=settings, dimensions=(24, 200), timeout=BOUND, encoding="utf-8")
    seen = str(child.read())
    child.close()
    assert child.exitstatus == 0
    return seen


def test_where_nothing_matches_a_list_says_so(serve: Serve, home: Path) -> None:
    """That there is no conversation is said only where there is none."""
    server = serve()
    key = (home / "key").read_text().strip()
    httpx.post(f"{server.url}/v1/runs", json={"input": "work"}, headers={"Authorization": f"Bearer {key}"})
    assert "legato ls --all" in legato(home, "ls").err
    server.say("hello")
    for options in (("--kind", "foo"), ("-q", "nosuch"), ("--kind", "run", "-q", "nosuch")):
        said = legato(home, "ls", *options)
        assert (said.code, said.out, said.err) == (0, "", "Nothing was found.\n")


def test_human_talk_is_listed_and_the_rest_on_demand(serve: Serve, home: Path) -> None:
    """What a program ran by itself is not gone on with either."""
    address = serve().url
    talk = legato(home, "ask", "--json", "hello").json["conversation"]["id"]
    key = (home / "key").read_text().strip()
    run = httpx.post(f"{address}/v1/runs", json={"input": "work"}, headers={"Authorization": f"Bearer {key}"})
    ran = run.headers["X-Legato-Conversation"]
    assert [row["id"] for row in legato(home, "ls", "--json").json] == [talk]
    assert {row["id"] for row in legato(home, "ls", "--all", "--json").json} == {talk, ran}
    assert [row["id"] for row in legato(home, "ls", "--kind", "run", "--json").json] == [ran]
    assert legato(home, "ask", "-c", "--json", "still here?").json["conversation"]["id"] == talk
    assert "hello" in legato(home, "ls").out
