"""The page `docs/benchmarks.md` with its two plots, made wholly from the figures; its words stand in `page.md`."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from peer.figures import Block, Measured, Results, Talk
from peer.load import BLOCK, CHAT, FULL, NAMED
from peer.plot import Line, svg
from peer.servers import HERMES, LEGATO

VERSION = "0.19.0"
STEP = 1.18  # of the turns over which a point of the latency plot is the median
MS = {n: f"{n:g} ms" if n < 1000 else f"{n / 1000:g} s" for n in (0.1, 1, 10, 100, 1000, 10_000, 100_000)}
BYTES = {1e3: "1 kB", 1e4: "10 kB", 1e5: "100 kB", 1e6: "1 MB", 1e7: "10 MB", 1e8: "100 MB", 1e9: "1 GB"}
GROWN = """\
Of {said:,} words of answers in the named conversation, the prompt after its last turn held {sent:,} in Hermes Agent.
What it stores of a named conversation holds earlier messages more than once, and more often with every turn: to find
where a turn begins it compares what it had with what the agent gives back, and the agent's messages carry a mark
(`_db_persisted`) that the others lack. That goes on until its compression sets in, and is where the time and the bytes
of its named conversation go; the one with a session header has no part in it."""
WAYS = {CHAT: "by header", NAMED: "by name"}


class Figure(NamedTuple):
    value: float
    text: str
    gain: bool = False  # the more, the better; else it is a cost


Row = tuple[str, Callable[[Measured], Figure]]


def write(results: Results, folder: Path) -> None:
    words = Path(__file__).with_name("page.md").read_text()
    machine, first = results.machine, results.measured[LEGATO]
    page = words.format(
        date=results.date,
        machine=f"{machine.cpu}, {machine.cores} cores, {machine.memory:.0f} GB, Linux {machine.kernel}, "
        f"Python {machine.python} (a million additions in a loop take {machine.loop:.0f} ms), "
        f"load average before the run {machine.load:.1f}",
        version=VERSION,
        minutes=max(1, round(results.seconds / 60)),
        goals=goals(results),
        alone=FULL.crowd[1],
        rounds=len(first.crowds[1]),
        turns=turns(results),
        chat=len(first.talks[CHAT].took),
        named=len(first.talks[NAMED].took),
        talks=talks(results),
        grown=grown(results.measured[HERMES].talks[NAMED]),
        outcomes=outcomes(results),
        sizes=sizes(results),
    )
    (folder / "benchmarks.md").write_text(page)
    (folder / "benchmarks-latency.svg").write_text(latency_plot(results))
    (folder / "benchmarks-bytes.svg").write_text(bytes_plot(results))
    print(f"{folder / 'benchmarks.md'} and two plots are written")
    print(goals(results))


# -- tables


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def compared(results: Results, rows: Sequence[Row]) -> str:
    """One row for each figure: both, and how many times better Legato's is (below 1: worse)."""
    told = []
    for what, figure in rows:
        peer, own = figure(results.measured[HERMES]), figure(results.measured[LEGATO])
        more, less = (own, peer) if own.gain else (peer, own)
        ratio = more.value / max(less.value, 1e-9)
        told.append((what, peer.text, own.text, f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}"))
    return table(["", HERMES, LEGATO, "better by"], told)


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def sized(value: float) -> Figure:
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= least:
            return Figure(value, f"{number(value / least)} {unit}")
    return Figure(value, f"{value:.0f} B")


def spread(values: Sequence[float], unit: str) -> Figure:
    middle = median(values)
    text = f"{number(middle)} {unit}".strip()
    return Figure(middle, text if len(values) == 1 else f"{text} ({number(min(values))}–{number(max(values))})")


def percentile(values: Sequence[float], which: int) -> Figure:
    value = quantiles(values, n=100, method="inclusive")[which - 1]
    return Figure(value, f"{number(value)} ms")


def goals(results: Results) -> str:
    peer, own = results.measured[HERMES], results.measured[LEGATO]

    def factor(figure: Callable[[Measured], float]) -> float:
        return figure(peer) / figure(own)

    rate = 1 / factor(lambda side: median(crowd.rate for crowd in side.crowds[8]))
    cpu = factor(lambda side: median(crowd.cpu for crowd in side.crowds[8]))
    written = factor(lambda side: block(side.talks[NAMED], 100).written)
    kept = [outcome.held for outcome in results.outcomes[LEGATO]]
    theirs = [outcome.held for outcome in results.outcomes[HERMES]]
    told = [
        ("turns a second with 8 clients: at least 50 times those of Hermes Agent", f"{rate:,.0f} times", rate >= 50),
        ("CPU a turn with 8 clients: at most 1/50", f"1/{cpu:,.0f}", cpu >= 50),
        (
            "bytes written by a turn, at turn 100 of a named conversation: at most 1/100",
            f"1/{written:,.0f}",
            written >= 100,
        ),
        ("every scenario of continuity holds", f"{sum(kept)} of {len(kept)} (Hermes Agent {sum(theirs)})", all(kept)),
    ]
    return table(
        ["goal", "measured", ""], [(goal, found, "reached" if ok else "**missed**") for goal, found, ok in told]
    )


def turns(results: Results) -> str:
    rows: list[Row] = []
    for n in results.measured[LEGATO].crowds:
        who = "one client" if n == 1 else f"{n} clients"
        rows += [
            (f"turns a second, {who}", partial(_rate, clients=n)),
            (f"latency p50, {who}", partial(_crowd_latency, clients=n, which=50)),
            (f"latency p99, {who}", partial(_crowd_latency, clients=n, which=99)),
            (f"CPU a turn, {who}", partial(_crowd_cpu, clients=n)),
        ]
    for route in WAYS:
        rows += [(f"first token p{p}, `{route}`", partial(_first_token, route=route, which=p)) for p in (50, 99)]
    return compared(results, rows)


def _rate(side: Measured, clients: int) -> Figure:
    return spread([crowd.rate for crowd in side.crowds[clients]], "")._replace(gain=True)


def _crowd_latency(side: Measured, clients: int, which: int) -> Figure:
    return percentile([took for crowd in side.crowds[clients] for took in crowd.took], which)


def _crowd_cpu(side: Measured, clients: int) -> Figure:
    return spread([crowd.cpu for crowd in side.crowds[clients]], "ms")


def _first_token(side: Measured, route: str, which: int) -> Figure:
    return percentile(side.tokens[route], which)


def talks(results: Results) -> str:
    rows: list[Row] = []
    for route, way in WAYS.items():
        length = len(results.measured[LEGATO].talks[route].took)
        marks = [turn for turn in (10, 100, 500) if turn <= length]
        rows += [(f"latency at turn {n}, {way}", partial(_latency, route=route, turn=n)) for n in marks]
        rows += [(f"written by turn {n}, {way}", partial(_written, route=route, turn=n)) for n in marks]
        rows += [(f"handed over by turn {n}, {way}", partial(_handed, route=route, turn=n)) for n in marks]
        for n in marks:
            rows.append((f"disk after turn {n}, {way}", partial(_disk, route=route, turn=n)))
            rows.append(("… of it write-ahead log", partial(_wal, route=route, turn=n)))
        rows += [(f"CPU of turn {n}, {way}", partial(_cpu, route=route, turn=n)) for n in marks]
        rows.append((f"memory after turn {length}, {way}", partial(_memory, route=route)))
    return compared(results, rows)


def block(talk: Talk, turn: int) -> Block:
    """The block that ends with that turn (in a short run: the last one)."""
    return next((block for block in talk.blocks if block.turn >= turn), talk.blocks[-1])


def _latency(side: Measured, route: str, turn: int) -> Figure:
    return spread(side.talks[route].took[turn - BLOCK : turn], "ms")


def _written(side: Measured, route: str, turn: int) -> Figure:
    return sized(block(side.talks[route], turn).written)


def _handed(side: Measured, route: str, turn: int) -> Figure:
    return sized(block(side.talks[route], turn).handed)


def _disk(side: Measured, route: str, turn: int) -> Figure:
    found = block(side.talks[route], turn)
    return sized(found.disk + found.wal)


def _wal(side: Measured, route: str, turn: int) -> Figure:
    return sized(block(side.talks[route], turn).wal)


def _cpu(side: Measured, route: str, turn: int) -> Figure:
    return spread([block(side.talks[route], turn).cpu], "ms")


def _memory(side: Measured, route: str) -> Figure:
    return sized(side.talks[route].memory[1])


def grown(talk: Talk) -> str:
    if talk.sent <= talk.said:
        return ""
    return GROWN.format(said=talk.said, sent=talk.sent)


def outcomes(results: Results) -> str:
    pairs = zip(results.outcomes[HERMES], results.outcomes[LEGATO], strict=True)
    rows = [(own.what, _outcome(peer.held, peer.seen), _outcome(own.held, own.seen)) for peer, own in pairs]
    return table(["what happens", HERMES, LEGATO], rows)


def _outcome(held: bool, seen: str) -> str:
    return f"{'held' if held else '**not held**'}: {seen}"


def sizes(results: Results) -> str:
    rows: list[Row] = [
        ("ready after", lambda side: spread(side.starts, "s")),
        ("first answer after the start of the process", lambda side: spread(side.firsts, "s")),
        ("resident memory after three turns", lambda side: sized(side.talks[CHAT].memory[0])),
        ("installed, without caches and pip", lambda side: sized(side.size)),
        ("packages", lambda side: Figure(side.packages, f"{side.packages}")),
        ("lines of its own code (Python, SQL)", lambda side: Figure(side.lines, f"{side.lines:,}")),
    ]
    return compared(results, rows)


# -- plots


def latency_plot(results: Results) -> str:
    lines = _lines(results, lambda talk: binned(talk.took))
    return svg("Latency of a turn, over the length of its conversation", "latency of a turn (logarithmic)", lines, MS)


def bytes_plot(results: Results) -> str:
    lines = _lines(results, lambda talk: [(block.turn, max(block.written, 1)) for block in talk.blocks])
    return svg(
        "Bytes written by a turn, over the length of its conversation",
        "bytes written by a turn (logarithmic)",
        lines,
        BYTES,
    )


def _lines(results: Results, points: Callable[[Talk], list[tuple[float, float]]]) -> list[Line]:
    sides = ((HERMES, "a"), (LEGATO, "b"))
    return [
        Line(f"{name}, {way}", style, route == NAMED, points(results.measured[name].talks[route]))
        for name, style in sides
        for route, way in WAYS.items()
    ]


def binned(took: Sequence[float]) -> list[tuple[float, float]]:
    """Medians over ever wider runs of turns, as a logarithmic axis shows them."""
    found, start = [], 0
    while start < len(took):
        end = max(start + 1, round((start + 1) * STEP) - 1)
        end = len(took) if len(took) - end < (end - start) / 2 else end
        found.append((float(min(end, len(took))), median(took[start:end])))
        start = end
    return found
