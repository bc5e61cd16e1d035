"""A client that keeps its own plain lists of everything that was acknowledged, and compares them with what it is told.

The lists are the oracle of P1 and P2. They are kept the naive way: a conversation is a list of bodies, a fork is a copy
of its beginning, and what people and models see is computed from the whole list each time.
"""

from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

import pytest

from engine.rooms import message, submission
from engine.scripted import USAGE, Scripted, echo, last_said
from legato.app import App
from legato.domain.entries import AnyBody, Compaction, Expand, Hide, Message, Pin, Remove, Rewind, Setup, Text
from legato.domain.handles import Address, ById, External, Name, Slug
from legato.domain.ids import ConversationId, PrincipalId, TurnId
from legato.domain.shape import shape
from legato.domain.turns import After, Fresh, Target
from legato.engine.prompt import past_of
from legato.engine.protocols import ModelEvent, ModelRequest, TextChunk
from legato.errors import AliasTaken, ModelUnavailable, UnknownHandle, UnknownTurn

T = TypeVar("T")


def answer(request: ModelRequest) -> list[ModelEvent | Exception]:
    """Echoes; but what begins with "fail" fails in mid answer."""
    if last_said(request).startswith("fail"):
        return [TextChunk("par"), TextChunk("tial"), ModelUnavailable()]
    return list(echo(request))


@dataclass
class Ledger:
    """One conversation as a client knows it."""

    title: str = ""
    entries: list[AnyBody] = field(default_factory=list)
    tip: TurnId | None = None

    def people_see(self) -> list[int]:
        """The positions of the transcript: what was seen after each entry; a rewind goes back to an earlier view."""
        voided, kept = self._voided(), self._not_rewound()
        gone = {b.at for seq in kept if isinstance(b := self.entries[seq - 1], Remove) and seq not in voided}
        return [seq for seq in kept if seq not in gone]

    def _not_rewound(self) -> list[int]:
        views: list[list[int]] = [[]]
        for seq, body in enumerate(self.entries, 1):
            views.append(views[body.to] if isinstance(body, Rewind) else [*views[-1], seq])
        return views[-1]

    def _voided(self) -> set[int]:
        return {body.of for seq in self._not_rewound() if isinstance(body := self.entries[seq - 1], Expand)}

    def model_sees(self) -> tuple[Setup | None, Compaction | None, list[int]]:
        """The setup in force, the summary, and the positions read verbatim."""
        visible = {seq: self.entries[seq - 1] for seq in self.people_see()}
        voided = self._voided()
        living = [self.entries[seq - 1] for seq in self._not_rewound() if seq not in voided]
        setups = [body for body in living if isinstance(body, Setup)]
        summaries = [body for body in living if isinstance(body, Compaction)]
        seen = {seq for seq in visible if not summaries or seq > summaries[-1].upto}
        for body in living:
            if isinstance(body, Hide):
                seen -= set(range(body.first, body.last + 1))
            elif isinstance(body, Pin):
                seen |= {body.at} & set(visible)
        return (setups or [None])[-1], (summaries or [None])[-1], sorted(seen)

    def places(self, *kinds: type[Any]) -> list[int]:
        return [seq for seq, body in enumerate(self.entries, 1) if isinstance(body, kinds)]


@dataclass(frozen=True)
class Said:
    """One turn as a client knows it: where it was, and what it came after."""

    home: ConversationId
    parent: TurnId | None
    first: int
    last: int
    failed: bool


@dataclass(frozen=True)
class Expected:
    """Where a turn will go: into a conversation that is there, or (home None) into a new one with these beginnings."""

    home: ConversationId | None
    parent: TurnId | None = None
    begins: Ledger = field(default_factory=Ledger)
    hides: tuple[tuple[int, int], ...] = ()


class Client:
    """Does things to conversations. Every verb takes plain numbers, so that a script can be generated."""

    def __init__(self, who: PrincipalId) -> None:
        self.who = who
        self.app: App
        self.ledgers: dict[ConversationId, Ledger] = {}
        self.names: dict[Name, ConversationId] = {}
        self.said: dict[TurnId, Said] = {}
        self.choices: tuple[Name, ...] = (
            Slug("project"),
            Slug("other"),
            External("their-session"),
            Address("telegram", "bot", who),
        )
        self._number = count()

    # -- sending

    async def send_to_name(self, a: int, b: int) -> None:
        name = self.choices[a % len(self.choices)]
        home = self.names.get(name)
        expected = Expected(home, self.ledgers[home].tip) if home else Expected(None)
        self.names[name] = await self._talk(name, expected, b)

    async def send_by_id(self, a: int, b: int) -> None:
        home = _pick(self.ledgers, a)
        await self._talk(ById(home), Expected(home, self.ledgers[home].tip), b)

    async def send_without_a_name(self, a: int, b: int) -> None:
        await self._talk(Fresh(), Expected(None), b)

    async def send_after_any(self, a: int, b: int) -> None:
        if not self.said:
            return
        previous = _pick(self.said, a)
        await self._talk(After(previous), self._after(previous), b)

    async def send_after_the_tip(self, a: int, b: int) -> None:
        tips = [ledger.tip for ledger in self.ledgers.values() if ledger.tip is not None]
        if not tips:
            return
        previous = _pick(tips, a)
        expected = self._after(previous)
        assert expected.home == self.said[previous].home
        await self._talk(After(previous), expected, b)

    def _after(self, previous: TurnId) -> Expected:
        """With nothing but failed tries after it the conversation continues, around them; else this is a fork."""
        turn = self.said[previous]
        ledger = self.ledgers[turn.home]
        later = [other for other in self.said.values() if other.home == turn.home and other.first > turn.last]
        if all(other.failed for other in later):
            return Expected(turn.home, previous, hides=_in_a_row({(other.first, other.last) for other in later}))
        return Expected(None, previous, Ledger(ledger.title, ledger.entries[: turn.last]))

    async def _talk(self, target: Target, expected: Expected, b: int) -> ConversationId:
        """Say something, perhaps hang up while it is answered, perhaps fail; then the ledger has the same."""
        fails, hangs_up_after = b % 5 == 4, b % 7 if b % 2 else None
        text = f"{'fail' if fails else 'message'} {next(self._number)}"
        turn = await self.app.gateway.submit(submission(text, target, who=self.who))
        if hangs_up_after is not None:
            await self._follow_a_little(turn.id, hangs_up_after)
        turn = await self.app.gateway.ended(turn)
        assert turn.status == ("failed" if fails else "done")
        if expected.home is None:
            assert turn.conversation_id not in self.ledgers
            self.ledgers[turn.conversation_id] = expected.begins
        else:
            assert turn.conversation_id == expected.home
        ledger = self.ledgers[turn.conversation_id]
        first = len(ledger.entries) + 1
        ledger.entries += [Hide(low, high, why="failed try") for low, high in expected.hides]
        ledger.entries.append(message(text))
        self._check_asked(ledger)
        setup = self.app.roster.cast(None).setup
        if ledger.model_sees()[0] != setup:
            ledger.entries.append(setup)
        said = "partial" if fails else f"you said: {text}"
        ledger.entries.append(Message("assistant", (Text(said),), incomplete=fails))
        ledger.tip = turn.id
        last = len(ledger.entries)
        self.said[turn.id] = Said(turn.conversation_id, expected.parent, first, last, fails)
        assert (turn.parent_turn, turn.first_seq, turn.last_seq) == (expected.parent, first, last)
        assert fails or turn.usage == USAGE
        await self.check(turn.conversation_id)
        return turn.conversation_id

    async def _follow_a_little(self, turn_id: TurnId, events: int) -> None:
        async with aclosing(self.app.gateway.follow(self.who, turn_id)) as following:
            async for n, _ in following:
                if n >= events:
                    break

    # -- what is seen

    async def rewind(self, a: int, b: int) -> None:
        home, ledger = self._filled(a)
        to = b % (len(ledger.entries) + 1)
        await self.app.gateway.rewind(self.who, ById(home), to)
        await self._wrote(home, Rewind(to))

    async def compact(self, a: int, b: int) -> None:
        home, ledger = self._filled(a)
        upto, summary = 1 + b % len(ledger.entries), f"summary {next(self._number)}"
        await self.app.gateway.compact(self.who, ById(home), upto, summary)
        await self._wrote(home, Compaction(upto, summary, by=self.who, why="by hand"))

    async def expand(self, a: int, b: int) -> None:
        able = {h: p for h, ledger in self.ledgers.items() if (p := ledger.places(Compaction, Pin, Hide, Remove))}
        if able:
            home = _pick(able, a)
            of = _pick(able[home], b)
            await self.app.gateway.expand(self.who, ById(home), of)
            await self._wrote(home, Expand(of))

    async def pin(self, a: int, b: int) -> None:
        home, ledger = self._filled(a)
        if places := ledger.places(Message):
            at = _pick(places, b)
            await self.app.gateway.pin(self.who, ById(home), at)
            await self._wrote(home, Pin(at))

    async def remove(self, a: int, b: int) -> None:
        home, ledger = self._filled(a)
        if places := ledger.places(Message):
            at = _pick(places, b)
            await self.app.gateway.remove(self.who, ById(home), at)
            await self._wrote(home, Remove(at))

    async def hide(self, a: int, b: int) -> None:
        home, ledger = self._filled(a)
        first = 1 + b % len(ledger.entries)
        last = min(len(ledger.entries), first + b % 3)
        await self.app.gateway.hide(self.who, ById(home), first, last)
        await self._wrote(home, Hide(first, last, why="by hand"))

    async def post(self, a: int, b: int) -> None:
        home, _ = self._filled(a)
        posted = message(f"posted {next(self._number)}")
        await self.app.gateway.add(self.who, ById(home), [posted])
        await self._wrote(home, posted)

    async def _wrote(self, home: ConversationId, body: AnyBody) -> None:
        self.ledgers[home].entries.append(body)
        await self.check(home)

    def _filled(self, a: int) -> tuple[ConversationId, Ledger]:
        filled = {home: ledger for home, ledger in self.ledgers.items() if ledger.entries}
        home = _pick(filled, a)
        return home, filled[home]

    # -- names, titles, forks

    async def rename(self, a: int, b: int) -> None:
        home = _pick(self.ledgers, a)
        self.ledgers[home].title = title = f"title {next(self._number)}"
        assert (await self.app.gateway.rename(self.who, ById(home), title)).id == home
        await self.check(home)

    async def fork(self, a: int, b: int) -> None:
        home = _pick(self.ledgers, a)
        ledger = self.ledgers[home]
        at = b % (len(ledger.entries) + 1)
        fork = (await self.app.gateway.fork(self.who, ById(home), at)).conversation
        assert fork.id not in self.ledgers
        self.ledgers[fork.id] = Ledger(ledger.title, ledger.entries[:at])
        await self.check(home)
        await self.check(fork.id)

    async def create(self, a: int, b: int) -> None:
        """An empty conversation: there, and not in any list yet."""
        created = (await self.app.gateway.create(self.who, {})).conversation
        assert created.id not in self.ledgers
        self.ledgers[created.id] = Ledger()
        await self.check(created.id)

    async def delete(self, a: int, b: int) -> None:
        """Put one away if another is left: its names are free, its turns unknown; forks of it live on."""
        home = _pick(self.ledgers, a)
        if any(ledger.entries for other, ledger in self.ledgers.items() if other != home):
            del self.ledgers[home]
            self.names = {name: means for name, means in self.names.items() if means != home}
            gone = [turn for turn, said in self.said.items() if said.home == home]
            self.said = {turn: said for turn, said in self.said.items() if said.home != home}
            await self.app.gateway.delete(self.who, ById(home))
            with pytest.raises(UnknownHandle):
                await self.app.gateway.transcript(self.who, ById(home))
            for turn in gone[:1]:
                with pytest.raises(UnknownTurn):
                    await self.app.gateway.submit(submission("more", After(turn), who=self.who))
            await self.check_names()

    async def bind(self, a: int, b: int) -> None:
        """Give a name; one that means another conversation is refused and stays."""
        home, name = _pick(self.ledgers, a), self.choices[b % len(self.choices)]
        try:
            await self.app.gateway.bind(self.who, name, ById(home))
        except AliasTaken:
            assert self.names.get(name) not in (None, home)
        else:
            assert self.names.setdefault(name, home) == home
        await self.check_names()

    async def point(self, a: int, b: int) -> None:
        """Reset or resume: the name is pointed elsewhere on purpose."""
        home, name = _pick(self.ledgers, a), self.choices[b % len(self.choices)]
        await self.app.gateway.bind(self.who, name, ById(home), move=True)
        self.names[name] = home
        await self.check_names()

    # -- comparing

    async def check(self, home: ConversationId) -> None:
        """One conversation is what this client's list says. What is written stays, so each time one look is enough;
        `check_all` takes them all."""
        look = (self._check_people, self._check_model, self._check_place)[next(self._number) % 3]
        await look(home)

    async def _check_place(self, home: ConversationId) -> None:
        ledger, found = self.ledgers[home], await self.app.gateway.find(self.who, ById(home))
        assert (found.title, found.head_seq, found.tip_turn) == (ledger.title, len(ledger.entries), ledger.tip)

    async def _check_people(self, home: ConversationId) -> None:
        ledger, entries = self.ledgers[home], await self.app.gateway.transcript(self.who, ById(home))
        assert [(e.seq, e.body) for e in entries] == [(seq, ledger.entries[seq - 1]) for seq in ledger.people_see()]

    def _check_asked(self, ledger: Ledger) -> None:
        """The model was asked with what it sees, as if it had never been asked before."""
        model = self.app.roster.cast(None).model
        assert isinstance(model, Scripted)
        _, summary, verbatim = ledger.model_sees()
        bodies = [ledger.entries[seq - 1] for seq in verbatim]
        assert model.requests[-1].items == shape(bodies, past_of(summary))

    async def _check_model(self, home: ConversationId) -> None:
        ledger, view = self.ledgers[home], await self.app.gateway.context(self.who, ById(home))
        setup, summary, verbatim = ledger.model_sees()
        assert (view.setup, view.summary) == (setup, summary)
        assert [(e.seq, e.body) for e in view.entries] == [(seq, ledger.entries[seq - 1]) for seq in verbatim]

    async def check_names(self) -> None:
        for name, home in self.names.items():
            assert (await self.app.gateway.find(self.who, name)).id == home

    async def check_all(self) -> None:
        """Every name, every conversation, and no other."""
        await self.check_names()
        listed = {conversation.id for conversation in await self.app.gateway.conversations(self.who, 1000)}
        assert listed == {home for home, ledger in self.ledgers.items() if ledger.entries}
        for home in self.ledgers:
            await self._check_place(home)
            await self._check_people(home)
            await self._check_model(home)


def _pick(among: Sequence[T] | dict[T, Any], a: int) -> T:
    choices = list(among)
    return choices[a % len(choices)]


def _in_a_row(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Spans, those that touch as one."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        begin = found.pop()[0] if found and found[-1][1] == first - 1 else first
        found.append((begin, last))
    return tuple(found)
