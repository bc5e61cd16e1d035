"""Running a turn: the step loop, from the lease to the end.

    model → entries (committed) → tools → results (each committed) → model → … → the answer

Nothing lives longer than the turn, and everything it needs is read from the log when it starts. A tool call is
durable before the tool runs. The turn ends in one visible outcome: done, failed or cancelled, or it is handed back;
a worker that lost its lease writes nothing and leaves quietly.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import aclosing

from legato.domain import fingerprint
from legato.domain.attachments import Blob, referred
from legato.domain.conversations import life
from legato.domain.entries import (
    AnyBody,
    Compaction,
    Draft,
    Entry,
    Hide,
    Item,
    Message,
    Note,
    Reasoning,
    Setup,
    ToolCall,
    ToolResult,
    View,
    draft,
)
from legato.domain.events import Answered, AnyEvent, Folded, next_index
from legato.domain.ids import moment_of
from legato.domain.shape import Past, made_of
from legato.domain.turns import Failure, Lease, Outcome, Turn, Usage
from legato.domain.window import Known
from legato.engine import prompt, recovery
from legato.engine.calls import carry_out
from legato.engine.compaction import LEFT_OUT, Compactor, SummaryFailed, failure_note
from legato.engine.interrupts import Interrupted, Interrupts
from legato.engine.journal import Journal, Pump
from legato.engine.live import Live
from legato.engine.pasts import Kept, Pasts
from legato.engine.protocols import ModelRequest
from legato.engine.roster import Cast, Roster
from legato.engine.step import Step
from legato.errors import ContextTooLarge, Defect, LeaseLost, LegatoError, StoreUnavailable, Unreadable
from legato.logs import logger
from legato.store import blobs, log, turns
from legato.store.database import Database, Hint, Tx
from legato.store.log import Begun
from legato.store.turns import Ending

REFUSALS = 4  # times that a provider may say that a request is too long


class TurnRun:
    """One turn under one lease. `interrupts` may be used while `run` is under way."""

    def __init__(
        self,
        lease: Lease,
        *,
        db: Database,
        live: Live,
        pump: Pump,
        roster: Roster,
        compactor: Compactor,
        pasts: Pasts,
        max_attempts: int,
    ) -> None:
        self._db, self._live, self._pump, self._roster, self._compactor = db, live, pump, roster, compactor
        self._pasts = pasts
        self._past = Past()  # how what the model sees begins
        self._begun: Begun | None = None  # of which log that is the beginning, before this turn
        self._shown: tuple[Setup, list[AnyBody], str] | None = None  # what came after the past, and its last entry
        self._max_attempts = max_attempts
        self.lease = lease
        self.interrupts = Interrupts()
        self._usage = lease.turn.usage or Usage()  # what earlier attempts have cost is on the bill
        self._blobs: dict[str, Blob] = {}
        self._noted = False  # the log says that something was left out
        self._answer = 0  # tokens that an answer must have room for, where the provider insists
        self.long = False  # the context has grown past what it should be
        self._said: list[AnyBody] = []  # everything that the log has of this turn's output
        self._unwritten: list[Draft] = []  # a setup that goes along with the next entries
        live.open(self.turn.id)

    @property
    def turn(self) -> Turn:
        return self.lease.turn

    async def run(self) -> Ending | None:
        """Run to the end; None when the turn left this process without ending."""
        ending: Ending | None = None
        try:
            told = (await self._db.read(turns.events_from, self.turn.id, 0))[1] if self.lease.begun else []
            async with asyncio.TaskGroup() as group:
                self._step = Step(self.turn, next_index(told))
                self._journal = Journal(self._db, self._live, self._pump, self.lease, len(told))
                self._live.begin(self.turn.id, len(told))
                watching = group.create_task(self._journal.watch())
                try:
                    ending = await self._outcome(told)
                finally:
                    self._journal.close()
                watching.cancel()
            return ending
        except Unreadable as error:  # what followers were told before: nothing can go on from there
            outcome = Outcome(status="failed", usage=self._usage, failure=Failure.of(error))
            ending = await self._db.write(turns.finish, self.lease, outcome)
            return ending
        except ExceptionGroup as errors:
            if errors.subgroup(LeaseLost):
                logger.warning("lease lost: another worker goes on with this turn")
                return None
            raise
        finally:
            self._live.close(self.turn.id, ending)
            if ending is not None:
                self._keep(ending.turn)

    async def _prepare(self, told: list[AnyEvent]) -> tuple[recovery.Remains, Setup | None, list[AnyBody]]:
        """Where the turn stood when it was told of so far; the setup in force, and what is seen after the past."""
        if not self.lease.begun:
            return recovery.NOTHING, *await self._seen()
        entries, view = await self._db.read(_left_behind, self.lease)
        brought = {d.id for d in self.turn.input.drafts}
        self._said = [entry.body for entry in entries if entry.id not in brought]
        self._past = prompt.past_of(view.summary)
        return recovery.remains(told, entries), view.setup, [entry.body for entry in view.entries]

    async def _seen(self) -> tuple[Setup | None, list[AnyBody]]:
        """The setup in force and what comes after the past. Nothing is read where the log stands as this process left
        it, or was empty, and what the turn brings has no say in what is seen."""
        given, first, fence = self.turn.input, self.turn.first_seq, self.lease.fence
        assert first is not None
        kept = self._pasts.get(self.turn.conversation_id)
        brought = [d.body for d in given.drafts]
        if given.hides or not all(isinstance(body, Item) for body in brought):
            return await self._read_on(kept, first)
        if first == 1:
            self._begun = Begun(Known(0, None, ()), life(fence), None)
            return None, brought
        if kept is not None and kept.is_all(self.turn, fence):  # whoever writes raises it
            self._begun, self._past = kept.begun, kept.past
            return kept.setup, brought
        return await self._read_on(kept, first)

    async def _read_on(self, kept: Kept | None, first: int) -> tuple[Setup | None, list[AnyBody]]:
        """The same from the log. The past is kept as far as this turn's input."""
        conversation, known = self.turn.conversation_id, kept.begun if kept is not None else None
        view, begun = await self._db.read(log.read_on, conversation, self.lease.fence, known, first - 1)
        self._begun = begun
        self._past = kept.past if kept is not None and view.after else prompt.past_of(view.summary)
        grown = self._past.grown(entry.body for entry in view.entries if entry.seq < first)
        if grown is None:
            return view.setup, [entry.body for entry in view.entries]
        self._past = grown
        self._pasts.put(conversation, Kept(begun, grown))
        return view.setup, [entry.body for entry in view.entries if entry.seq >= first]

    def _keep(self, ended: Turn) -> None:
        """Keep what the model was shown and has said, for the next turn."""
        if self._shown is None or self._begun is None or ended.last_seq is None:
            return
        setup, bodies, last = self._shown
        if (grown := self._past.grown(bodies)) is not None:
            begun = Begun(self._begun.known.grown(ended.last_seq), self._begun.life, last)
            kept = Kept(begun, grown, setup, ended.id, self.lease.fence + 1)
            self._pasts.put(ended.conversation_id, kept)

    async def _outcome(self, told: list[AnyEvent]) -> Ending | None:
        """Every way a turn can end, in one place."""
        try:
            return await self._steps(*await self._prepare(told))
        except Interrupted:
            if not self.interrupts.stopping:
                await self._db.write(turns.release, self.lease)
                return None
            outcome = Outcome(status="cancelled", usage=self._usage)
        except (LeaseLost, StoreUnavailable):
            raise  # nothing can be written here; whoever claims the turn next goes on
        except LegatoError as error:
            if isinstance(error, Defect):
                logger.error("defect", error=error.message)
            outcome = Outcome(status="failed", usage=self._usage, failure=Failure.of(error))
        except Exception:
            logger.exception("the turn failed")
            failure = Failure("internal_error", "The turn failed unexpectedly; see the gateway's log.")
            outcome = Outcome(status="failed", usage=self._usage, failure=failure)
        closing = list(self._step.close(incomplete=True))
        return await self._end(outcome, self._step.drafts(), closing)

    async def _steps(self, remains: recovery.Remains, setup: Setup | None, bodies: list[AnyBody]) -> Ending:
        if self.turn.cancel_at is not None:
            self.interrupts.stop()
        cast = self._cast()
        bodies += await self._clear_up(remains)
        if self.turn.attempts > self._max_attempts:
            await self._call_tools(remains.in_doubt, Cast(cast.agent, cast.model, {}), again=True)
            deaths = self.turn.attempts - 1
            return await self._fail("attempts_exhausted", f"The gateway stopped {deaths} times in this turn.")
        bodies += await self._call_tools(remains.in_doubt, cast, again=True)
        if any(isinstance(body, ToolCall) and body.client for body in self._said):  # theirs to answer, as it was before
            return await self._end(self._done(self._said))
        if self.lease.begun:
            bodies += await self._steered()
        if setup != cast.setup:  # a changed agent is written with the next entries
            self._unwritten = [draft(cast.setup)]
        for _ in range(cast.agent.max_steps - remains.steps):
            bodies = await self._ask(cast, bodies)
            closing = list(self._step.close(incomplete=self._step.cut_by is not None))
            drafts = self._step.drafts()
            self._said += [d.body for d in drafts]
            calls = [d.body for d in drafts if isinstance(d.body, ToolCall)]
            here = [call for call in calls if not call.client]
            if not here:
                ending = await self._end(self._done([d.body for d in drafts]), drafts, closing)
                if drafts:
                    self._shown = cast.setup, bodies + [d.body for d in drafts], drafts[-1].id
                return ending
            await self._append(drafts, closing)
            self._step = Step(self.turn, self._step.next_index)
            bodies += [d.body for d in drafts]
            bodies += await self._call_tools(here, cast, again=False)
            if len(here) < len(calls):  # the rest is the client's to answer
                return await self._end(self._done([d.body for d in drafts]))
            bodies += await self._steered()
        return await self._fail("max_steps", f"The agent took {cast.agent.max_steps} steps without an answer.")

    def _cast(self) -> Cast:
        """Who answers. Where that is not who the turn was admitted for, it was admitted under another configuration."""
        options = self.turn.input.options
        cast, named = self._roster.cast(options.agent), options.echo.get("model")
        if named is not None and named == options.agent and named != cast.name:
            advice = "give every node the same configuration"
            logger.warning("nobody here has the name asked for", name=named, answers=cast.name, advice=advice)
        return cast

    async def _ask(self, cast: Cast, bodies: list[AnyBody]) -> list[AnyBody]:
        """One model call with a request that fits. Where the past was folded for it, other bodies come after it."""
        for _ in range(REFUSALS):
            bodies, request, size = await self._fitting(cast, bodies)
            try:
                await self._listen(cast, await self._with_bytes(request))
            except ContextTooLarge:
                if self._step.begun or (answer := await self._compactor.refused(cast, request)) is None:
                    raise
                self._answer = answer or self._answer
            else:
                self._compactor.learn(cast, size, self._step.usage.input_tokens)
                return bodies
        raise ContextTooLarge()

    async def _fitting(self, cast: Cast, bodies: list[AnyBody]) -> tuple[list[AnyBody], ModelRequest, int]:
        """A request within the model's window, and its size, or 0 where it need not be measured."""
        threshold = self.turn.input.options.compact_threshold
        request = prompt.build(self.turn, cast, self._past, bodies)
        if not self._answer and self._compactor.is_small(cast, request, threshold):
            return bodies, request, 0
        due, most = await self._compactor.budget(cast, threshold, self._answer)
        size = self._compactor.size(request, cast)
        self.long = size > due
        if size > (most if threshold is None else due):
            bodies = await self._fold(cast, due)
            request = prompt.build(self.turn, cast, self._past, bodies)
            size = self._compactor.size(request, cast)
        if size > most:
            request, left_out = self._compactor.trimmed(cast, request, most)
            size = self._compactor.size(request, cast)
            if not self._noted:
                self._noted = True
                await self._append([draft(Note(left_out, reason=LEFT_OUT))], [])
        return bodies, request, size

    async def _fold(self, cast: Cast, due: int) -> list[AnyBody]:
        """Let a summary stand for the past, here and now, if one can be made."""
        self._begun = None  # it begins anew
        view = await self._db.read(log.read_context, self.turn.conversation_id)
        plan = self._compactor.plan(view, due // 2)
        if plan is not None and await self._compactor.worth_trying(view, cast):
            try:
                async with self.interrupts.point():
                    made = await self._compactor.compact(cast, view, plan, why="the request would not fit")
            except SummaryFailed as error:
                await self._append([failure_note(error)], [])
            else:
                self._usage += made.usage
                self.long = False
                await self._append(made.drafts, [self._folded(made.drafts[0])])
                view = await self._db.read(log.read_context, self.turn.conversation_id)
        self._past = prompt.past_of(view.summary)
        return [entry.body for entry in view.entries]

    def _folded(self, summary: Draft) -> Folded:
        assert isinstance(summary.body, Compaction)
        index, self._step.next_index = self._step.next_index, self._step.next_index + 1
        return Folded(index, summary.id, summary.body)

    async def _with_bytes(self, request: ModelRequest) -> ModelRequest:
        """The same with the images and files that it refers to."""
        missing = set(made_of(request.items, referred)) - self._blobs.keys()
        if missing:
            self._blobs |= await self._db.read(blobs.get, self.turn.principal, missing)
        return prompt.attached(request, self._blobs)

    async def _listen(self, cast: Cast, request: ModelRequest) -> None:
        """One model call; what it says goes into the step and to the followers."""
        async with self.interrupts.point(), aclosing(cast.model.stream(request)) as events:
            async for event in events:
                for told in self._step.take(event):
                    self._journal.emit(told)
        self._usage += self._step.usage

    async def _clear_up(self, remains: recovery.Remains) -> list[AnyBody]:
        """Close what a crash left open. Prose that followers saw whole is kept whole and hidden from the model, which
        takes a new run at this step."""
        if not remains.closing and not remains.cut_off:
            return []
        self._said += [d.body for d in remains.cut_off]
        first, _ = await self._journal.append(remains.cut_off, remains.closing)
        whole = [seq for seq, d in enumerate(remains.cut_off, first) if not _cut(d.body)]
        if whole:
            await self._journal.append([draft(Hide(seq, seq, why="said before a crash")) for seq in whole])
        return [d.body for d in remains.cut_off if _cut(d.body)]

    async def _call_tools(self, calls: Sequence[ToolCall], cast: Cast, *, again: bool) -> list[ToolResult]:
        """Carry out calls side by side; each result is durable as it arrives."""
        if not calls:
            return []
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._call_tool(call, cast, again=again)) for call in calls]
        except ExceptionGroup as errors:  # a tool's own fault is a result; this is the store's
            raise errors.exceptions[0] from errors
        results = [result for task in tasks if (result := task.result()) is not None]
        if len(results) < len(tasks):
            raise Interrupted
        return results

    async def _call_tool(self, call: ToolCall, cast: Cast, *, again: bool) -> ToolResult | None:
        result = await carry_out(self.turn, cast, call, self.interrupts, said=self._said, again=again)
        if result is not None:
            kept = draft(result, moment=moment_of(self.turn.id))
            index, self._step.next_index = self._step.next_index, self._step.next_index + 1
            await self._append([kept], [Answered(index, kept.id, result.call_id, result.output, result.is_error)])
        return result

    async def _steered(self) -> list[AnyBody]:
        """Inputs that join this turn between two steps."""
        self.interrupts.check()
        if not await self._db.read(turns.steering, self.turn.conversation_id):
            return []
        joined = await self._journal.absorb()
        for turn in joined:
            self._live.nudge(turn.id)
            self._db.tell(Hint("events", turn.id))
        return [d.body for turn in joined for d in turn.input.drafts]

    async def _append(self, drafts: Iterable[Draft], events: Iterable[AnyEvent]) -> None:
        unwritten, self._unwritten = self._unwritten, []
        await self._journal.append([*unwritten, *drafts], events, progress=self._usage)

    def _done(self, said: list[AnyBody]) -> Outcome:
        """The end of a turn whose last step said this. A client that keeps its own history will send again all that it
        has heard."""
        messages = [body for body in said if isinstance(body, Message)]
        history = self.turn.input.options.history
        return Outcome(
            status="done",
            answer=messages[-1].text if messages else "",
            usage=self._usage,
            fingerprint=fingerprint.answered(history, self._said) if history is not None else None,
        )

    async def _fail(self, code: str, message: str) -> Ending:
        return await self._end(Outcome(status="failed", usage=self._usage, failure=Failure(code, message)))

    async def _end(self, outcome: Outcome, drafts: Iterable[Draft] = (), events: Iterable[AnyEvent] = ()) -> Ending:
        return await self._journal.finish(outcome, [*self._unwritten, *drafts], events)


def _cut(body: AnyBody) -> bool:
    return isinstance(body, Message | Reasoning) and body.incomplete


async def _left_behind(tx: Tx, lease: Lease) -> tuple[list[Entry], View]:
    await log.check(tx, lease.turn.conversation_id, lease.fence)
    return await log.entries_of_turn(tx, lease.turn), await log.read_context(tx, lease.turn.conversation_id)
