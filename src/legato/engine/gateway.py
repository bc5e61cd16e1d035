"""The gateway: the one door, for HTTP, channels, the command line and schedules alike.

What comes in is admitted durably and then runs whether or not anyone stays to watch: clients only follow. Every
verb takes the principal; what belongs to another is not there.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager
from typing import TypeVar

from msgspec import structs

from legato.domain.attachments import Blob, attach, detach, has_inline, references
from legato.domain.channels import MessageKey
from legato.domain.conversations import Conversation
from legato.domain.entries import (
    Compaction,
    Draft,
    Entry,
    Hide,
    Message,
    Note,
    Rewind,
    View,
)
from legato.domain.events import AnyEvent, Latecomer
from legato.domain.folding import Fold
from legato.domain.handles import Address, ById, Handle, Slug
from legato.domain.ids import ConversationId, NodeId, PrincipalId, TurnId, new_conversation_id
from legato.domain.turns import Admission, Dedup, Submission, Told, Turn, Usage
from legato.engine import metrics, prompt
from legato.engine.compaction import LEFT_OUT, SummaryFailed
from legato.engine.ephemeral import Ephemeral
from legato.engine.live import Live
from legato.engine.roster import Cast, Roster
from legato.engine.upkeep import Upkeep
from legato.engine.worker import Worker
from legato.errors import BadInput
from legato.store import admission, directory, inbox, log, requests, turns
from legato.store import blobs as store_blobs
from legato.store.database import Database, Hint, Tx
from legato.store.inbox import Due, Received
from legato.store.turns import Ending

Held = TypeVar("Held", Entry, Draft)

End = asyncio.Future[Ending | None]
"""How a turn has ended, for whoever was attending; nothing where that has to be looked up."""

News = tuple[Turn, AsyncIterator[tuple[int, list[AnyEvent]]]] | Conversation
"""What happens in a conversation: a turn with its events (those that are there together), or a new title."""


class Gateway(Upkeep):
    """Submit, follow, cancel, rewind, fork, bind, read."""

    def __init__(self, db: Database, live: Live, worker: Worker) -> None:
        super().__init__(db, worker)
        self._live = live

    def drain(self) -> None:
        """Admit nothing more."""
        self._draining = True

    async def check(self) -> None:
        """Fail unless the store takes writes and this process takes work."""
        self._check_open()
        await self._worker.renew()

    # -- turns

    async def submit(self, submission: Submission) -> Turn:
        """Admit a turn. When this returns it is durable, and it runs whoever is watching."""
        self._check_open()
        if any(has_inline(d.body) for d in submission.input.drafts):
            submission = await self._without_bytes(submission)
        return await self._worker.detach(self._admit(submission))

    async def _without_bytes(self, submission: Submission) -> Submission:
        """The same with references to blobs, which go along with it, where it had bytes."""
        blobs: dict[str, Blob] = {}

        def take_out() -> tuple[Draft, ...]:
            return tuple(Draft(d.id, detach(d.body, blobs)) for d in submission.input.drafts)

        drafts = await asyncio.to_thread(take_out)  # large ones take a while
        given = structs.replace(submission.input, drafts=drafts)
        return structs.replace(submission, input=given, blobs=tuple(blobs.values()))

    async def _admit(self, submission: Submission) -> Turn:
        with self._worker.room() as node:
            admitted: Admission = await self._db.write(admission.admit, submission, node)
            if admitted.lease is not None:
                self._worker.start(admitted.lease)
        return self._tell_of(admitted, node)

    async def receive(
        self,
        address: Address,
        keys: list[MessageKey],
        submission_of: Callable[[list[MessageKey]], Submission],
        due: Due,
    ) -> Received | None:
        """Admit messages of a channel as one turn, those that have acted left out; None when all of them have."""
        self._check_open()

        async def receive() -> Received | None:
            with self._worker.room() as node:
                received = await self._db.write(inbox.receive, address, keys, submission_of, due, node)
                if received is not None and received.admission.lease is not None:
                    self._worker.start(received.admission.lease)
            if received is not None:
                self._tell_of(received.admission, node)
            return received

        return await self._worker.detach(receive())

    def _tell_of(self, admitted: Admission, node: NodeId | None) -> Turn:
        """Let everybody know whom a turn that was admitted concerns."""
        for turn_id in admitted.stopped:
            self._worker.stop(turn_id)
            self._db.tell(Hint("cancel", turn_id))
        if node is None and not admitted.turn.ended:  # no room here: whoever has some takes it
            self._worker.offer(admitted.turn.conversation_id)
            self._db.tell(Hint("queued", admitted.turn.conversation_id))
        if admitted.turn.kind == "upkeep":
            self._worker.index_soon()
        if admitted.fresh:
            metrics.ADMITTED.inc()
            self._live.nudge(admitted.turn.conversation_id)
            self._db.tell(Hint("admitted", admitted.turn.conversation_id))
        return admitted.turn

    async def repeated(self, principal: PrincipalId, dedup: Dedup | None) -> bool:
        """Whether a request was carried out before; one with the same key and another content is refused."""
        return dedup is not None and await self._db.read(requests.repeated, principal, dedup)

    async def admitted(self, principal: PrincipalId, dedup: Dedup | None) -> Turn | None:
        """The turn that a request was admitted as before."""
        return await self._db.read(admission.repeated, principal, dedup) if dedup is not None else None

    async def ephemeral(self, submission: Submission) -> Ephemeral:
        """A turn that leaves nothing behind; the conversation it names is read, not written."""
        self._check_open()
        if not submission.input.drafts:
            raise BadInput("A turn needs an input.", param="input")
        found = await self._db.read(turns.context_for, submission.principal, submission.target)
        given, view, named = submission.input, None, submission.target
        slug = named.value if isinstance(named, Slug) else None
        turn = _unsaved(submission, found[0].id if found else new_conversation_id())
        if found is not None:
            given, view, slug = admission.with_choices(given, found[0]), found[1], await self.slug(turn)
            view = structs.replace(view, entries=tuple(await self._with_bytes(submission.principal, view.entries)))
        cast = self.roster.cast(given.options.agent)
        return Ephemeral(structs.replace(turn, input=given), slug, cast, view, self._worker.compactor)

    async def turn(self, principal: PrincipalId, turn_id: TurnId) -> Turn:
        """A turn as it stands; for one that joined another, that other."""
        return await self._db.read(turns.outcome_of, principal, turn_id)

    async def submitted(self, principal: PrincipalId, turn_id: TurnId) -> Turn:
        """A turn as it was submitted, also one that joined another."""
        return await self._db.read(turns.find, principal, turn_id)

    async def ended(self, turn: Turn, end: End | None = None) -> Turn:
        """A turn that was submitted or read, once it has ended; for one that joined another, that other."""
        return (await self._ended(turn, end))[0]

    async def answered(self, turn: Turn, end: End | None = None) -> Told:
        """The same, with what it wrote."""
        turn, told = await self._ended(turn, end)
        return await self.told(turn) if told is None else await self._whole(told)

    async def _ended(self, turn: Turn, end: End | None) -> tuple[Turn, Told | None]:
        told: Told | None = None
        while not turn.ended or turn.status == "joined":
            host = await self._db.read(turns.get, turn.joined_turn) if turn.joined_turn else turn
            turn, told = await self._live.ended(host, end)
        return turn, told

    def attending(self, turn: Turn) -> AbstractContextManager[End]:
        """Follow a turn to its end: how it has ended need not be asked for then, where it runs here."""
        return self._live.attending(turn.id)

    def attend(self, turn: Turn) -> None:
        """Someone is about to follow a turn: its first words are not to wait until then."""
        self._live.watch(turn.id)

    async def follow(self, principal: PrincipalId, turn_id: TurnId, n: int = 0) -> AsyncIterator[tuple[int, AnyEvent]]:
        """Every event of a turn from number `n` on, until it has ended. Leaving stops nothing."""
        async for first, events in self.follow_on(await self.turn(principal, turn_id), n):
            for numbered in enumerate(events, first):
                yield numbered

    async def follow_on(self, turn: Turn, n: int = 0) -> AsyncIterator[tuple[int, list[AnyEvent]]]:
        """The same for a turn that was submitted or read in its owner's name, to the end, though it be deleted: what is
        there together, with the number of the first."""
        while True:
            async for place, events in self._live.follow(turn.id, n):
                yield place, events
            if turn.status == "running":  # one that runs joins no other
                return
            followed, turn = turn.id, await self._db.read(turns.standing, turn.id)
            if turn.id == followed:
                return
            n = 0  # where an input joined another turn, its followers see that turn from its start

    async def hear(self, turn: Turn) -> AsyncGenerator[list[AnyEvent], None]:
        """The same for whoever comes to it late and has one text of it all, in which nothing stands that was said anew
        after a crash."""
        _, told = await self._db.read(turns.events_from, turn.id, 0)
        late = Latecomer(told)
        async for n, events in self.follow_on(turn):
            if heard := late.take(n, events):
                yield heard
        if rest := late.rest():
            yield rest

    async def watch(
        self, principal: PrincipalId, handle: Handle, after: int = 0, *, title: str | None = None
    ) -> AsyncIterator[News]:
        """Every turn of a conversation after number `after`, in order, as they come: each with its events. Between
        turns the conversation itself, when its title is no longer the one it was read with. Endless."""
        conversation = await self.find(principal, handle)
        title = conversation.title if title is None else title
        with self._live.bell(conversation.id) as bell:
            while True:
                bell.clear()  # before looking, so that nothing that comes after is missed
                present = await self.find(principal, ById(conversation.id))  # until it is deleted
                if present.title != title:
                    title = present.title
                    yield present
                found = await self._db.read(turns.of_conversation, conversation.id, after, 100)
                for turn in found:
                    after = turn.n
                    yield turn, self._live.follow(turn.id)
                if not found:
                    await self._live.news(bell)

    async def recall(self, principal: PrincipalId, fingerprint: str) -> TurnId | None:
        """The turn after which a history stands exactly as a client sent it."""
        return await self._db.read(turns.recall, principal, fingerprint)

    async def delete_turn(self, principal: PrincipalId, turn_id: TurnId) -> None:
        """Let nobody ask for a turn any more; what it wrote stays part of the conversation."""
        await self._db.write(turns.delete, principal, turn_id)

    async def stop(self, principal: PrincipalId, turn_id: TurnId, *, dedup: Dedup | None = None) -> Turn:
        """Ask for a turn to be stopped. What was written stays. A request that has stopped one stops no other."""
        turn = await self._db.write(_stop, principal, turn_id, dedup)
        if turn.cancel_at is not None and not turn.ended:
            self._worker.stop(turn.id)
            self._worker.offer(turn.conversation_id)  # one that was handed back is closed by whoever takes it
            self._db.tell(Hint("cancel", turn.id))
        self._live.nudge(turn.id)
        self._db.tell(Hint("events", turn.id))
        return turn

    async def cancel(self, principal: PrincipalId, turn_id: TurnId) -> Turn:
        """Stop a turn, and wait until it has stopped."""
        return await self.ended(await self.stop(principal, turn_id))

    async def output(self, principal: PrincipalId, turn_id: TurnId) -> list[Entry]:
        """What a turn wrote, its input included."""
        turn = await self.turn(principal, turn_id)
        return await self._with_bytes(principal, await self._db.read(log.entries_of_turn, turn))

    async def outcome(self, principal: PrincipalId, turn_id: TurnId) -> Told:
        """A turn as it stands, with what it wrote; for one that joined another, that other."""
        return await self._whole(await self._db.read(turns.outcome_with_output, principal, turn_id))

    async def slug(self, turn: Turn) -> str | None:
        """The slug of the conversation of a turn that was submitted or read."""
        return directory.slug_among(await self._db.read(directory.names, turn.conversation_id))

    async def told(self, turn: Turn) -> Told:
        """A turn that was submitted or read, with what it has written."""
        return await self._whole(await self._db.read(turns.with_output, turn))

    async def _whole(self, told: Told) -> Told:
        return structs.replace(told, entries=await self._with_bytes(told.turn.principal, told.entries))

    async def receipt(self, turn: Turn) -> tuple[log.Receipt, str | None]:
        """What the model saw when it wrote the last of a turn's output, and what was left out of that to fit."""
        seen = await self._db.read(log.receipt, turn)
        notes = [entry.body for entry in await self._db.read(log.entries_of_turn, turn) if isinstance(entry.body, Note)]
        left_out = [note.text for note in notes if note.reason == LEFT_OUT]
        return seen, left_out[-1] if left_out else None

    async def brought(self, turn: Turn) -> list[Draft]:
        """What a turn that was submitted or read came with."""
        return await self._with_bytes(turn.principal, turn.input.drafts)

    async def _with_bytes(self, principal: PrincipalId, holders: Iterable[Held]) -> list[Held]:
        """Entries or drafts with bytes where they refer to blobs."""
        holders = list(holders)
        if wanted := references(holder.body for holder in holders):
            blobs = await self._db.read(store_blobs.get, principal, wanted)
            return [structs.replace(holder, body=attach(holder.body, blobs)) for holder in holders]
        return holders

    async def taken_back(self, turn: Turn) -> str:
        """What was said where that begins which a turn has hidden. That may have begun by hiding an earlier try."""
        place = 1 + next(d.body.to for d in turn.input.drafts if isinstance(d.body, Rewind))
        while isinstance(body := await self._db.read(log.body_at, turn.conversation_id, place), Hide):
            place += 1
        return body.text if isinstance(body, Message) else ""

    async def answer(self, turn: Turn) -> str:
        """The last thing that a turn said which was submitted or read."""
        bodies = [entry.body for entry in await self._db.read(log.entries_of_turn, turn)]
        said = [body.text for body in bodies if isinstance(body, Message) and body.role == "assistant"]
        return said[-1] if said else ""

    # -- conversations

    async def rename(
        self, principal: PrincipalId, handle: Handle, title: str, *, dedup: Dedup | None = None
    ) -> Conversation:
        """The same; whoever watches the conversation is told."""
        conversation = await super().rename(principal, handle, title, dedup=dedup)
        self._live.nudge(conversation.id)
        self._db.tell(Hint("admitted", conversation.id))
        return conversation

    async def transcript(self, principal: PrincipalId, handle: Handle) -> list[Entry]:
        """What people see of a conversation."""
        conversation = await self.find(principal, handle)
        return await self._with_bytes(principal, await self._db.read(log.read_transcript, conversation.id))

    async def told_of(self, principal: PrincipalId, handle: Handle) -> list[Entry]:
        """The same without what is under way: followers see that live, everybody else once it has ended."""
        conversation = await self.find(principal, handle)
        return await self._with_bytes(principal, await self._db.read(turns.told_of, conversation.id))

    async def context(self, principal: PrincipalId, handle: Handle) -> View:
        """What the model sees of a conversation."""
        conversation = await self.find(principal, handle)
        return await self._db.read(log.read_context, conversation.id)

    # -- what a model would be sent

    async def condensed(
        self, submission: Submission, cast: Cast, focus: str = ""
    ) -> tuple[list[Draft], Compaction, Usage]:
        """What a client may send instead of a whole history: what was said by people, and a summary of everything.
        Nothing is written."""
        view = await self._context_with(submission)
        entries = view.entries
        plan = Fold(entries[-1].seq, entries, ()) if entries else None
        if plan is None:
            raise BadInput("There is nothing to compact.", param="input")
        made = await self._worker.compactor.compact(cast, view, plan, why="by request", focus=focus)
        body = made.drafts[0].body
        assert isinstance(body, Compaction)
        if body.upto < plan.upto or made.drafts[1:]:
            raise SummaryFailed("Only a part of the past could be summarised. Try again.")
        said = [Draft(e.id, e.body) for e in entries if isinstance(e.body, Message) and e.body.role == "user"]
        return said, body, made.usage

    async def measure(self, submission: Submission, cast: Cast) -> int:
        """How many tokens a request would have."""
        view = await self._context_with(submission)
        turn = _unsaved(submission, new_conversation_id())
        request = prompt.build(turn, cast, prompt.past_of(view.summary), [entry.body for entry in view.entries])
        return self._worker.compactor.size(request, cast)

    async def window(self, cast: Cast) -> int:
        """How many tokens a model takes."""
        return await self._worker.compactor.window(cast)

    @property
    def roster(self) -> Roster:
        """Who can answer."""
        return self._worker.roster

    async def _context_with(self, submission: Submission) -> View:
        """What a model would see if this were submitted."""
        found = await self._db.read(turns.context_for, submission.principal, submission.target)
        view = found[1] if found else View(None, None, (), 0, 0)
        brought = [
            Entry(view.head + place, d.id, submission.turn_id, d.body, 0.0)
            for place, d in enumerate(submission.input.drafts, 1)
        ]
        return structs.replace(view, entries=(*view.entries, *brought))


async def _stop(tx: Tx, principal: PrincipalId, turn_id: TurnId, dedup: Dedup | None) -> Turn:
    async def make(tx: Tx) -> Conversation:
        turn = await turns.cancel(tx, principal, turn_id)
        return await directory.find(tx, principal, ById(turn.conversation_id))

    if dedup is None:
        return await turns.cancel(tx, principal, turn_id)
    await requests.once(tx, principal, dedup, make)
    return await turns.outcome_of(tx, principal, turn_id)


def _unsaved(submission: Submission, conversation_id: ConversationId) -> Turn:
    """A turn that no store knows."""
    return Turn(
        id=submission.turn_id,
        conversation_id=conversation_id,
        n=0,
        parent_turn=None,
        principal=submission.principal,
        dedup_key=None,
        request_hash=None,
        kind="talk",
        status="running",
        busy=submission.busy,
        input=submission.input,
        created_at=time.time(),
    )
