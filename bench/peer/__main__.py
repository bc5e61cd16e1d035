"""Legato and Hermes Agent side by side: speed, cost and continuity, on one upstream that takes no time.

`make bench-peer` installs both and runs this; the page `docs/benchmarks.md` and its two plots are written from what it
finds. `make bench-peer ARGS=--quick` goes through everything in a few minutes, to check the script itself, and keeps
no page; `ARGS=--page` writes the page again from the figures of the last full run.
"""

import argparse
import os
import platform
import tempfile
import time
import timeit
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import uvloop
from wire import provider

from peer import load
from peer.figures import Machine, Measured, Results, Talk
from peer.installed import hermes, legato
from peer.page import write
from peer.scenarios import all_scenarios
from peer.servers import HERMES, LEGATO, both

ROOT = Path(__file__).parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(prog="peer", description=__doc__)
    parser.add_argument("peer", type=Path, help="the environment in which Hermes Agent is installed")
    parser.add_argument("--quick", action="store_true", help="a little of everything; writes no page")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page from the last figures")
    options = parser.parse_args()
    peer: Path = options.peer.resolve()
    kept = peer.parent / "results.json"
    if options.quick:  # a page is made, too, but not kept
        with tempfile.TemporaryDirectory(prefix="bench-peer-") as folder:
            write(run(peer, load.QUICK), Path(folder))
        return
    if not options.page:
        kept.write_bytes(msgspec.json.encode(run(peer, load.FULL)))
    write(msgspec.json.decode(kept.read_bytes(), type=Results), ROOT / "docs")


def run(peer: Path, plan: load.Plan) -> Results:
    started, host = time.perf_counter(), machine()
    with provider() as port:
        sides = both(peer, port)
        sizes = {HERMES: hermes(peer), LEGATO: legato(ROOT)}
        print("starts", flush=True)
        starts = load.starts(sides, plan.rounds)
        print("rates and first tokens", flush=True)
        with load.pair(sides) as pair:
            servers = {name: server for name, (server, _) in pair.items()}
            rates = uvloop.run(load.rates(servers, plan))
            tokens = uvloop.run(load.first_tokens(servers, plan))
        talks: dict[str, dict[str, Talk]] = {name: {} for name in sides}
        for route, turns in plan.long.items():
            print(f"a talk of {turns} turns on {route}", flush=True)
            with load.pair(sides) as pair:
                for name, talk in uvloop.run(load.long_talk(pair, route, turns)).items():
                    talks[name][route] = talk
        outcomes = {}
        for name, serve in sides.items():
            print(f"continuity, {name}", flush=True)
            outcomes[name] = all_scenarios(serve, plan)
    measured = {
        name: Measured(
            starts=[ready for ready, _ in starts[name]],
            firsts=[first for _, first in starts[name]],
            crowds=rates[name],
            tokens=tokens[name],
            talks=talks[name],
            **msgspec.structs.asdict(sizes[name]),
        )
        for name in sides
    }
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    return Results(date, time.perf_counter() - started, plan is load.QUICK, host, measured, outcomes)


def machine() -> Machine:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    loop = min(timeit.repeat("for n in range(1_000_000): total += n", "total = 0", number=1, repeat=7)) * 1e3
    kernel = platform.release().partition("-")[0]
    return Machine(cpu, os.cpu_count() or 1, memory, kernel, platform.python_version(), loop, os.getloadavg()[0])


if __name__ == "__main__":
    main()
