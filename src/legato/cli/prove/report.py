"""What a drill says in the end: a table for people, everything for programs."""

import platform
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from legato import __version__
from legato.cli.prove.checks import KINDS
from legato.cli.prove.faults import Done
from legato.cli.prove.ledger import Asked, Finding, Found, Ledger
from legato.cli.prove.plan import WAYS

MANY = 20
COLUMNS = ("lost", "doubled", "out of order", "repeated tool", "torn")


class Terms(Struct, frozen=True, kw_only=True):
    """What was to be tried."""

    seed: int
    minutes: float
    nodes: int
    clients: int
    lease: float
    database: str


def summary(
    terms: Terms,
    seconds: float,
    interrupted: bool,
    ledger: Ledger,
    faults: Sequence[Done],
    found: Found,
    findings: Sequence[Finding],
) -> dict[str, Any]:
    """Everything, as plain values."""
    ready = [done.ready for done in faults if done.kind in ("kill", "kill all")]
    answered = [one.done - one.cut for one in ledger.asked if one.done is not None and one.cut is not None]
    taken = [one for one in ledger.asked if one.taken is not None]
    streams = [one.told for one in ledger.asked if one.told is not None]
    return {
        "legato": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "seed": terms.seed,
        "minutes": terms.minutes,
        "seconds": round(seconds, 1),
        "interrupted": interrupted,
        "database": terms.database,
        "nodes": terms.nodes,
        "clients": terms.clients,
        "lease": terms.lease,
        "ways": {way: _row(way, ledger.asked, findings) for way in WAYS},
        "all": _row(None, ledger.asked, findings),
        "conversations": len(found.conversations),
        "outcomes": dict(Counter(outcome.status for outcome in found.turns.values())),
        "streams": {
            "followed": len(streams),
            "cut by the client": sum(told.cuts for told in streams),
            "numbered events": sum(len(told.numbers) for told in streams),
        },
        "tools": {"asked": sum(one.way == "tool" for one in taken), "ran": sum(found.runs.values())},
        "compactions": ledger.compactions,
        "reads": len(ledger.looked),
        "faults": dict(Counter(done.kind for done in faults)),
        "points": dict(Counter(done.point for done in faults if done.kind == "kill")),
        "recovery": {"node ready again": _spread(ready), "cut request answered": _spread(answered)},
        "turns per second": round(len(taken) / seconds, 1) if seconds else 0.0,
        "findings": [{"kind": f.kind, "what": f.what} for f in findings],
        "held": not findings,
    }


def _row(way: str | None, asked: Sequence[Asked], findings: Sequence[Finding]) -> dict[str, int]:
    mine = [one for one in asked if way in (None, one.way)]
    kinds = Counter(f.kind for f in findings if way in (None, f.way))
    return {
        "asked": len(mine),
        "acknowledged": sum(one.taken is not None for one in mine),
        "cut": sum(one.cut is not None for one in mine),
        "asked again": sum(max(one.tries - 1, 0) for one in mine),
        "doubled on purpose": sum(one.doubles for one in mine),
        **{kind: kinds[kind] for kind in COLUMNS},
    }


def _spread(seconds: Sequence[float]) -> dict[str, float | int]:
    if not seconds:
        return {"times": 0}
    cuts = statistics.quantiles([*seconds, *seconds], n=100, method="inclusive")
    return {"times": len(seconds), "p50": round(cuts[49], 3), "p99": round(cuts[98], 3), "max": round(max(seconds), 3)}


def table(told: dict[str, Any]) -> str:
    """The same, to be read."""
    nodes = "1 node" if told["nodes"] == 1 else f"{told['nodes']} nodes"
    lines = [
        f"legato prove {told['legato']} · seed {told['seed']} · {told['seconds']:.0f} s · {told['database']} · "
        f"{nodes} · {told['clients']} clients · lease {told['lease']:g} s",
        "",
        *_grid(told),
        "",
        _line("streams", told["streams"]),
        _line("tools", told["tools"]),
        _line("compactions", told["compactions"]),
        _line("outcomes", told["outcomes"]),
        _line("faults", told["faults"]),
        _line("kills", told["points"]),
        *(_times(what, spread) for what, spread in told["recovery"].items()),
        f"  {'turns per second':<22}{told['turns per second']}",
        "",
    ]
    for finding in told["findings"][:MANY]:
        lines.append(f"  {finding['kind']}: {finding['what']}")
    if len(told["findings"]) > MANY:
        lines.append(f"  … and {len(told['findings']) - MANY} more")
    return "\n".join([*lines, verdict(told)])


def verdict(told: dict[str, Any]) -> str:
    """The last line."""
    if told["held"]:
        early = " (ended early)" if told["interrupted"] else ""
        return (
            f"Nothing was lost, doubled, reordered or repeated: {told['all']['acknowledged']} acknowledged inputs, "
            f"{sum(told['faults'].values())} faults, and the store is whole{early}."
        )
    kinds = Counter(finding["kind"] for finding in told["findings"])
    broken = ", ".join(f"{count} {kind} ({KINDS[kind]})" for kind, count in kinds.items())
    return f"The promise was broken: {broken}. Seed {told['seed']} gives the same plan again."


def _grid(told: dict[str, Any]) -> list[str]:
    heads = ["what was asked", *told["all"]]
    rows = [[name, *map(str, row.values())] for name, row in [*told["ways"].items(), ("all", told["all"])]]
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    return [
        "  " + "  ".join(f"{cell:<{width}}" if not n else f"{cell:>{width}}" for n, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in [heads, *rows])
    ]


def _line(name: str, counts: dict[str, int]) -> str:
    return f"  {name:<22}" + (", ".join(f"{count} {what}" for what, count in counts.items()) or "none")


def _times(what: str, spread: dict[str, Any]) -> str:
    if not spread["times"]:
        return f"  {what:<22}never needed"
    figures = f"p50 {spread['p50']:.2f} s, p99 {spread['p99']:.2f} s, at most {spread['max']:.2f} s"
    return f"  {what:<22}{figures}, {spread['times']} times"
