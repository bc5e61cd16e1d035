"""Which entries of a log are seen: pure functions of its control entries.

People see the *transcript*: everything that no rewind hides and that was not removed. Models see the *context*. An
entry is in the context when it is in the transcript and the newest control that speaks of it lets it in:

- a `hide` that covers it takes it out; a `pin` of it keeps it in, verbatim, in its place (one that was written with a
  compaction, until there is a newer compaction);
- otherwise it is in when it comes after what the newest compaction stands for.

Only living controls count: one that was itself rewound, or voided by a living `expand`, says nothing any more.
So undo undoes compactions too, and a fork from before a compaction sees the originals.
"""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

Span = tuple[int, int]
"""Positions, both inclusive."""

ControlKind = Literal["setup", "compaction", "expand", "rewind", "pin", "hide", "remove"]


VOIDABLE = ("compaction", "pin", "hide", "remove")
REVIVING = ("expand", "rewind")
"""Where none of these is, a compaction or a setup is dead once there is a newer one."""


class Control(Struct, frozen=True):
    """A control entry (or a setup) without its body: enough to decide what is seen."""

    seq: int
    kind: ControlKind
    ref: int = 0
    first: int = 0


class Context(Struct, frozen=True):
    """What a model sees: the setup in force, the compaction that stands for the past, and the spans read verbatim. What
    it `kept` of them is there as long as that compaction is in force."""

    setup: int | None
    summary: int | None
    spans: tuple[Span, ...]
    kept: tuple[int, ...] = ()


def transcript(head: int, controls: Iterable[Control]) -> tuple[Span, ...]:
    """What people see: every position up to `head` that was neither rewound nor removed, oldest first."""
    return _alive(head, controls)[0]


def removed(head: int, controls: Iterable[Control]) -> set[int]:
    """The positions that were taken out of sight one by one."""
    return {c.ref for c in _alive(head, controls)[1] if c.kind == "remove"}


def context(head: int, controls: Iterable[Control]) -> Context:
    """What the model sees."""
    alive, living = _alive(head, controls)
    summary = next((c for c in reversed(living) if c.kind == "compaction"), None)
    spans = [(max(a, summary.ref + 1), b) for a, b in alive if b > summary.ref] if summary else list(alive)
    living = [c for c in living if not (c.kind == "pin" and c.first and summary and c.seq < summary.seq)]
    for control in living:
        if control.kind == "hide":
            spans = _without(spans, control.first, control.ref)
        elif control.kind == "pin" and _within(control.ref, alive) and not _within(control.ref, spans):
            spans = sorted([*spans, (control.ref, control.ref)])
    pins = [c for c in living if c.kind == "pin"]
    kept = {c.ref for c in pins if c.first} - {c.ref for c in pins if not c.first}
    return Context(
        setup=next((c.seq for c in reversed(living) if c.kind == "setup"), None),
        summary=summary.seq if summary else None,
        spans=tuple(spans),
        kept=tuple(sorted(ref for ref in kept if summary and ref <= summary.ref and _within(ref, spans))),
    )


class Known(Struct, frozen=True):
    """What a model sees, up to a position."""

    upto: int
    summary: int | None
    spans: tuple[Span, ...]

    def grown(self, upto: int) -> "Known":
        """The same after entries came up to a position that have no say in what is seen."""
        *before, (first, last) = self.spans or ((1, 0),)
        spans = [(first, upto)] if last == self.upto else [(first, last), (self.upto + 1, upto)]
        return Known(upto, self.summary, tuple(span for span in (*before, *spans) if span[0] <= span[1]))


def known(seen: Context, upto: int) -> Known:
    """The beginning of a context. One that has the same beginning later shows the same there: entries never change."""
    spans = tuple((first, min(last, upto)) for first, last in seen.spans if first <= upto)
    return Known(upto, seen.summary, spans)


def _alive(head: int, controls: Iterable[Control]) -> tuple[tuple[Span, ...], list[Control]]:
    """What is shown to people, and the controls that still speak, oldest first."""
    known = sorted((c for c in controls if c.seq <= head), key=lambda c: c.seq)
    shown = _not_rewound(head, known)
    living = [c for c in known if _within(c.seq, shown)] if shown != ((1, head),) else known
    voided = {c.ref for c in living if c.kind == "expand"}
    living = [c for c in living if c.seq not in voided or c.kind not in VOIDABLE]
    for control in living:
        if control.kind == "remove":
            shown = tuple(_without(shown, control.ref, control.ref))
    return shown, living


def _not_rewound(head: int, known: list[Control]) -> tuple[Span, ...]:
    spans: list[Span] = []
    for control in reversed(known):
        if control.kind == "rewind" and control.seq <= head:
            if control.seq < head:
                spans.append((control.seq + 1, head))
            head = control.ref
    if head >= 1:
        spans.append((1, head))
    return tuple(reversed(spans))


def _within(seq: int, spans: Iterable[Span]) -> bool:
    return any(a <= seq <= b for a, b in spans)


def _without(spans: Iterable[Span], first: int, last: int) -> list[Span]:
    """The spans less the positions from `first` to `last`."""
    if first > last:
        return list(spans)
    cut = [piece for a, b in spans for piece in ((a, min(b, first - 1)), (max(a, last + 1), b))]
    return sorted({(a, b) for a, b in cut if a <= b})
