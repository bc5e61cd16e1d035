"""Where a turn's time goes: a flame graph of a real `legato serve` under load. `make profile` runs it.

The sampler (py-spy) looks from outside, at all threads, and counts those that hold the interpreter: what is waited for
(the disk, the provider) does not show, what costs CPU in Python does. Beside the picture it prints the lines in which
most samples ended, and how much of the whole each function and each room of the code had beneath it.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import uvloop
from wire import ROUTES, WORDS, Connection, Gateway, provider, talk

RATE = 500  # samples a second
ROOMS = ("api/", "engine/", "store/", "domain/", "models/", "starlette/", "uvicorn/", "aiohttp/", "asyncio/")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--route", choices=ROUTES, default=ROUTES[1])
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--stream", action="store_true", help="streams of 200 tokens instead of plain answers of 20")
    parser.add_argument("--output", type=Path, default=Path("profile.svg"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="legato-profile-") as folder, provider() as port:
        with Gateway.serve(Path(folder) / "home", port) as gateway:
            stacks = Path(folder) / "stacks"
            turns, cpu = uvloop.run(load(gateway, given, ["--format", "raw", "--output", str(stacks)]))
            print(f"{turns} turns, {cpu / turns * 1e3:.2f} ms of CPU each (with the sampler beside)\n")
            tell(stacks.read_text().splitlines())
            uvloop.run(load(gateway, given, ["--format", "flamegraph", "--output", str(given.output)]))
    print(f"\nThe picture: {given.output}")


async def load(gateway: Gateway, given: argparse.Namespace, output: list[str]) -> tuple[int, float]:
    """Keep a gateway busy while it is sampled; how many turns, and the CPU seconds that they took."""
    connections = [await gateway.connect() for _ in range(given.clients)]
    text = f"{WORDS} say {200 if given.stream else 20}"
    await asyncio.gather(*(talk(c, given.route, text, stream=given.stream) for c in connections))
    options = ["--gil", "--nonblocking", "--rate", str(RATE), "--duration", str(given.seconds), *output]
    sampler = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("py-spy")), "record", "--pid", str(gateway.pid), *options,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    sampled = asyncio.create_task(sampler.communicate())
    turns, before = 0, gateway.cpu

    async def client(connection: Connection) -> None:
        nonlocal turns
        while not sampled.done():
            turns += len(await talk(connection, given.route, text, stream=given.stream))

    await asyncio.gather(*(client(connection) for connection in connections))
    _, complaint = await sampled
    if sampler.returncode != 0:
        sys.exit(f"The sampler failed: {complaint.decode()}")
    return turns, gateway.cpu - before


def tell(stacks: list[str]) -> None:
    """The rows of a raw profile, `frame;frame;frame count`, as two tables."""
    own, beneath, rooms, total = Counter[str](), Counter[str](), Counter[str](), 0
    for line in stacks:
        stack, _, number = line.rpartition(" ")
        frames, count = stack.split(";"), int(number)
        total += count
        own[frames[-1]] += count
        for frame in {f"{frame.rpartition(':')[0]})" for frame in frames if "legato/" in frame}:
            beneath[frame] += count
        for room in ROOMS:
            if any(room in frame for frame in frames):
                rooms[room] += count
    print("Samples that ended in a line:")
    for frame, count in own.most_common(25):
        print(f"  {count / total:6.1%}  {frame}")
    print("\nSamples beneath a function of ours:")
    for frame, count in beneath.most_common(40):
        print(f"  {count / total:6.1%}  {frame}")
    print("\nSamples beneath a room:")
    for room, count in rooms.most_common():
        print(f"  {count / total:6.1%}  {room}")


if __name__ == "__main__":
    main()
