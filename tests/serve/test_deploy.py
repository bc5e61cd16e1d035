"""The files under `deploy/`, as far as they can be checked where there is no Docker and no systemd to run them."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from legato.config import load
from serve.conftest import Serve
from serve.process import run

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
NODES = ["node1", "node2", "node3"]


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile, one instruction after the other."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1].strip()) for line in text.splitlines() if line.strip()]


def compose() -> Any:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


# -- the image


def test_everything_that_the_image_copies_is_there_and_not_ignored() -> None:
    """Each source exists in the repository, and the ignore file lets it through."""
    allowed = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"}
    sources = {
        source.removeprefix("./")
        for word, rest in instructions()
        if word == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    }
    assert sources
    assert all((ROOT / source).exists() for source in sources)
    assert sources <= allowed


def test_the_image_does_not_run_as_root_and_writes_into_its_home_only() -> None:
    """A user by number, so that an orchestrator can see that it is not root; the home is a volume."""
    words = dict(instructions())
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", words["USER"])
    environ = dict(pair.split("=", 1) for pair in shlex.split(words["ENV"]))
    assert environ["LEGATO_HOME"] == words["VOLUME"]
    assert environ["PYTHONDONTWRITEBYTECODE"] == "1"
    assert [word for word, _ in instructions()].count("FROM") == 2


def test_what_the_image_runs_runs_here(serve: Serve, home: Path) -> None:
    """The entry point with its arguments and settings listens, and the health check of the image finds it ready."""
    words = dict(instructions())
    assert json.loads(words["ENTRYPOINT"]) == ["legato"]
    [command] = json.loads(words["CMD"])
    assert command == "serve"
    environ = {k: v for k, v in (pair.split("=", 1) for pair in shlex.split(words["ENV"])) if k.startswith("LEGATO_")}
    config, _ = load(home, environ={k: v for k, v in environ.items() if k != "LEGATO_HOME"})
    assert config.server.host == "0.0.0.0"
    assert config.server.port == int(words["EXPOSE"])
    server = serve("--port", "0", env={**environ, "LEGATO_HOME": str(home)})
    [check] = re.findall(r"CMD (\[.*\])", words["HEALTHCHECK"])
    program = json.loads(check)[-1].replace("127.0.0.1:8420", f"127.0.0.1:{server.url.rsplit(':', 1)[1]}")
    assert subprocess.run([sys.executable, "-c", program], timeout=30, check=False).returncode == 0
    server.kill()
    dead = subprocess.run([sys.executable, "-c", program], timeout=30, capture_output=True, check=False)
    assert dead.returncode == 1


# -- three nodes


def test_three_nodes_share_one_database_and_have_a_home_each() -> None:
    """They differ in nothing else, can be read-only, and get longer to leave than turns get to finish."""
    services = compose()["services"]
    made = [services[name] for name in NODES]
    homes = [node.pop("volumes") for node in made]
    assert made[0] == made[1] == made[2]
    assert len({volume for [volume] in homes}) == 3
    assert made[0]["read_only"] is True
    assert made[0]["cap_drop"] == ["ALL"]
    build = made[0]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
    assert int(made[0]["stop_grace_period"].removesuffix("s")) > load(environ={})[0].server.drain + 10
    url = made[0]["environment"]["LEGATO_DATABASE_URL"]
    assert "@postgres:5432/legato" in url
    assert services["postgres"]["environment"]["POSTGRES_DB"] == "legato"
    used = {volume.split(":")[0] for service in compose()["services"].values() for volume in service["volumes"]}
    assert {name for name in used if not name.startswith(".")} == set(compose()["volumes"])


def test_the_balancer_knows_every_node_and_where_to_ask_whether_it_is_ready() -> None:
    """No stickiness, and its file is where the compose file looks for it."""
    text = (DEPLOY / "haproxy.cfg").read_text()
    assert re.findall(r"^\s+server (\w+) (\w+):8420$", text, re.MULTILINE) == [(name, name) for name in NODES]
    assert "option httpchk GET /readyz" in text
    assert not re.search(r"cookie|stick", text)
    balancer = compose()["services"]["balancer"]
    [mounted] = balancer["volumes"]
    assert (DEPLOY / mounted.split(":")[0]).is_file()
    assert balancer["depends_on"] == NODES
    assert "bind :8420" in text
    assert balancer["ports"] == ["127.0.0.1:8420:8420"]


# -- systemd


def unit() -> dict[str, list[str]]:
    lines = [line.split("=", 1) for line in (DEPLOY / "legato.service").read_text().splitlines() if "=" in line]
    settings: dict[str, list[str]] = {}
    for name, value in (line for line in lines if not line[0].startswith("#")):
        settings.setdefault(name, []).append(value)
    return settings


def test_the_unit_waits_for_the_gateway_and_gives_it_time_to_leave() -> None:
    """It is told when the gateway is ready, and what it runs is a command of ours."""
    settings = unit()
    assert settings["Type"] == ["notify"]
    assert float(settings["TimeoutStopSec"][0]) > load(environ={})[0].server.drain + 10
    [command] = settings["ExecStart"]
    assert run(*shlex.split(command)[1:], "--help")[0] == 0
    for name in ("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectHome", "DynamicUser"):
        assert settings[name] == ["yes"]
    assert settings["ProtectSystem"] == ["strict"]
    assert "AF_UNIX" in settings["RestrictAddressFamilies"][0]  # or systemd could not be told
    assert f"LEGATO_HOME=/var/lib/{settings['StateDirectory'][0]}" in settings["Environment"][0]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """With a program that is there; nothing else is to be said about it."""
    text = (DEPLOY / "legato.service").read_text().replace("/opt/legato/bin/legato", sys.executable)
    (tmp_path / "legato.service").write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "legato.service")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "legato.service" in line]) == (0, [])
