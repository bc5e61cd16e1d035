"""The ledger against what was found: pure functions, one for each promise. None of them may find anything."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from legato.cli.prove.ledger import Asked, Finding, Found, Looked, Piece, Refusal, marks_in

ENDED = ("completed", "failed", "incomplete", "cancelled")
UNKNOWN_OUTCOME = "is unknown: check before doing it again"
KINDS = {
    "lost": "acknowledged and not there",
    "unanswered": "asked again and again, and no answer",
    "doubled": "there more than once",
    "out of order": "before something that was acknowledged first",
    "strange": "there, and nobody said it there",
    "unended": "acknowledged and without an outcome",
    "changed": "another answer than the one that was given",
    "torn": "streams with a gap, a repeat or another text",
    "split": "one name, several conversations",
    "repeated tool": "a tool that ran twice for one call",
    "lost effect": "a finished call whose tool never ran",
    "unreadable": "answered, and not to be read a moment later",
    "refused": "an answer that no client should get",
    "verify": "a rule of the store that does not hold",
}


def check(asked: Sequence[Asked], looked: Iterable[Looked], refusals: Iterable[Refusal], found: Found) -> list[Finding]:
    """Everything that is wrong."""
    return [
        *inputs(asked, found),
        *order(asked, found),
        *strangers(asked, found),
        *outcomes(asked, found),
        *streams(asked, found),
        *names(asked, found),
        *tools(asked, found),
        *reads(looked),
        *(Finding("refused", f"{r.what}: {r.status} {r.body}") for r in refusals),
        *(Finding("verify", line) for line in found.verify),
    ]


def inputs(asked: Iterable[Asked], found: Found) -> Iterator[Finding]:
    """What was acknowledged is there once; what was not is there at most once; one request is one turn."""
    there = Counter(key for pieces in found.conversations.values() for key in _said(pieces))
    for one in asked:
        if one.taken is None and not one.gives_up:
            yield _about(one, "unanswered", f" was sent {one.tries} times, and nobody answered")
        if one.taken is not None and not there[one.key]:
            yield _about(one, "lost", " was acknowledged and is nowhere")
        if there[one.key] > 1:
            yield _about(one, "doubled", f" is there {there[one.key]} times")
        if len(one.turns) > 1:
            yield _about(one, "doubled", f" became {len(one.turns)} turns: {', '.join(sorted(one.turns))}")


def order(asked: Iterable[Asked], found: Found) -> Iterator[Finding]:
    """What was acknowledged before something else was sent comes before it."""
    known = {one.key: one for one in asked}
    for conversation, pieces in found.conversations.items():
        latest: Asked | None = None
        for key in _said(pieces):
            one = known.get(key)
            if one is None:
                continue
            if latest is not None and one.taken is not None and one.taken < latest.sent:
                yield _about(one, "out of order", f" comes after {_named(latest)} in {conversation}")
            if latest is None or one.sent > latest.sent:
                latest = one


def strangers(asked: Iterable[Asked], found: Found) -> Iterator[Finding]:
    """Nothing is there that nobody said, or that was said elsewhere."""
    known = {one.key: one for one in asked}
    homes: dict[str, set[str]] = defaultdict(set)
    for one in known.values():
        homes[one.place] |= one.conversations
    for conversation, pieces in found.conversations.items():
        for piece in pieces:
            if piece.kind != "user":
                continue
            said = [known[key] for key in marks_in(piece.text) if key in known]
            if not said:
                yield Finding("strange", f"{conversation} holds what nobody said: {piece.text[:60]!r}")
            for one in said:
                if homes[one.place] and conversation not in homes[one.place]:
                    yield _about(one, "strange", f" was said in another conversation than {conversation}")
                if one.text != piece.text:
                    yield _about(one, "changed", f" was said in other words: {piece.text[:60]!r}")


def outcomes(asked: Iterable[Asked], found: Found) -> Iterator[Finding]:
    """Every acknowledged turn has ended, and says what it said."""
    for one in asked:
        for turn in sorted(one.turns) if one.taken is not None else ():
            outcome = found.turns.get(turn)
            if outcome is None or outcome.status not in ENDED:
                yield _about(one, "unended", f": {outcome.status if outcome else 'nobody knows its turn'}")
                continue
            last = list(outcome.texts.values())[-1] if outcome.texts else ""
            if outcome.status == "completed" and one.expected is not None and last != one.expected:
                yield _about(one, "changed", f" was answered {last[:60]!r}, not {one.expected[:60]!r}")
            if one.answer is not None and one.answer != last:
                yield _about(one, "changed", f" was answered {one.answer[:60]!r}, and now {last[:60]!r}")


def streams(asked: Iterable[Asked], found: Found) -> Iterator[Finding]:
    """What a follower was shown, put together over all cuts, is what is there in the end."""
    for one in asked:
        told = one.told
        if told is None or one.taken is None:
            continue
        if not told.ended:
            yield _about(one, "torn", ": the stream never came to its end")
            continue
        if told.numbers != list(range(len(told.numbers))):
            yield _about(one, "torn", f": the numbers are not 0, 1, 2 …: {_breaks(told.numbers)}")
        for turn in one.turns:
            outcome = found.turns.get(turn)
            if outcome is not None and outcome.texts != told.texts:
                yield _about(one, "torn", f": the stream told another text than there is in {turn}")


def names(asked: Iterable[Asked], found: Found) -> Iterator[Finding]:
    """One name is one conversation, for every client at any time."""
    places: dict[str, set[str]] = defaultdict(set)
    for one in asked:
        places[one.place] |= one.conversations
    for place, conversations in places.items():
        if len(conversations) > 1:
            yield Finding(
                "split", f"{place} was {len(conversations)} conversations: {', '.join(sorted(conversations))}"
            )
    for name, listed in found.names.items():
        if len(listed) > 1:
            yield Finding("split", f"{name} is the name of {len(listed)} conversations: {', '.join(listed)}")


def tools(asked: Iterable[Asked], found: Found) -> Iterator[Finding]:
    """A tool ran at most once for a call, and exactly once where its result is there."""
    finished = {key for pieces in found.conversations.values() for key in _finished(pieces)}
    for one in asked:
        if one.way == "tool" and found.runs.get(one.key, 0) > 1:
            yield _about(one, "repeated tool", f": the tool ran {found.runs[one.key]} times")
        if one.key in finished and not found.runs.get(one.key):
            yield _about(one, "lost effect", ": the call has a result, and the tool never ran")


def reads(looked: Iterable[Looked]) -> Iterator[Finding]:
    """What was answered could be read at once, in order, from any node."""
    for look in looked:
        present = [key for key in look.found if key in look.expected]
        missing = [key for key in look.expected if key not in look.found]
        if missing:
            yield Finding("unreadable", f"{', '.join(missing)} had been answered and could not be read")
        elif present != list(look.expected):
            yield Finding("out of order", f"{look.conversation} was read as {', '.join(present)}")


def _said(pieces: Iterable[Piece]) -> Iterator[str]:
    """The keys of the inputs, as they follow each other."""
    for piece in pieces:
        if piece.kind == "user":
            yield from marks_in(piece.text)


def _finished(pieces: Iterable[Piece]) -> Iterator[str]:
    """The keys of calls whose result is known."""
    calls = {piece.call_id: piece.text for piece in pieces if piece.kind == "call"}
    for piece in pieces:
        if piece.kind == "result" and UNKNOWN_OUTCOME not in piece.text:
            yield from marks_in(calls.get(piece.call_id, ""))


def _about(one: Asked, kind: str, what: str) -> Finding:
    return Finding(kind, _named(one) + what, one.way)


def _named(one: Asked) -> str:
    return f"input {one.key} ({one.way}, {one.place})"


def _breaks(numbers: list[int]) -> str:
    places = [f"{a}, {b}" for a, b in pairwise([-1, *numbers]) if b != a + 1]
    return "; ".join(places[:3])
