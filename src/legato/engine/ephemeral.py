"""Turns that leave nothing behind (`store: false`): no entry, no event, no lease.

The conversation that is named is read, not written. What is said lives as long as someone listens; who leaves, ends
it.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import structs

from legato.domain.entries import AnyBody, Draft, Entry, ToolCall, View, draft
from legato.domain.events import Answered, AnyEvent
from legato.domain.turns import Failure, Told, Turn, Usage
from legato.engine import prompt
from legato.engine.calls import carry_out
from legato.engine.compaction import Compactor
from legato.engine.interrupts import Interrupts
from legato.engine.roster import Cast
from legato.engine.step import Step
from legato.errors import LegatoError, LimitReached


class Ephemeral:
    """One such turn. After `events` has come to its end, `turn` and `entries` say how it went."""

    def __init__(self, turn: Turn, slug: str | None, cast: Cast, view: View | None, compactor: Compactor) -> None:
        self.turn, self.slug = turn, slug
        self.entries: list[Entry] = []
        self._cast, self._view, self._compactor = cast, view, compactor
        self._usage = Usage()

    async def events(self) -> AsyncGenerator[AnyEvent, None]:
        """Run, and tell what happens as it happens."""
        failure: Failure | None = None
        try:
            async for event in self._steps():
                yield event
        except LegatoError as error:
            failure = Failure.of(error)
        self.turn = structs.replace(
            self.turn,
            status="failed" if failure else "done",
            usage=self._usage,
            failure=failure,
            ended_at=self.turn.created_at,
        )

    async def told(self) -> Told:
        """Run, and return how it went."""
        async with aclosing(self.events()) as events:
            async for _ in events:
                pass
        return Told(self.turn, self.entries, self.slug)

    async def _steps(self) -> AsyncGenerator[AnyEvent, None]:
        view = self._view
        bodies: list[AnyBody] = [entry.body for entry in view.entries] if view else []
        bodies += [d.body for d in self.turn.input.drafts]
        past = prompt.past_of(view.summary if view else None)
        index = 0
        for _ in range(self._cast.agent.max_steps):
            step = Step(self.turn, index)
            request = prompt.build(self.turn, self._cast, past, bodies)
            if not self._compactor.is_small(self._cast, request, None):
                _, most = await self._compactor.budget(self._cast)
                if self._compactor.size(request, self._cast) > most:
                    request, _ = self._compactor.trimmed(self._cast, request, most)
            failed: LegatoError | None = None
            try:
                async with aclosing(self._cast.model.stream(request)) as said:
                    async for part in said:
                        for event in step.take(part):
                            yield event
            except LegatoError as error:
                failed = error
            for event in step.close(incomplete=step.cut_by is not None or failed is not None):
                yield event
            self._usage += step.usage
            drafts = step.drafts()
            bodies += [d.body for d in drafts]
            self._keep(drafts)
            if failed is not None:
                raise failed
            calls = [d.body for d in drafts if isinstance(d.body, ToolCall)]
            here = [call for call in calls if not call.client]
            index = step.next_index
            for call in here:
                made = [entry.body for entry in self.entries]
                result = await carry_out(self.turn, self._cast, call, Interrupts(), said=made, again=False)
                assert result is not None  # nobody interrupts it
                kept = draft(result)
                self._keep([kept])
                bodies.append(result)
                yield Answered(index, kept.id, result.call_id, result.output, result.is_error)
                index += 1
            if not here or len(here) < len(calls):
                return
        raise LimitReached(f"The agent took {self._cast.agent.max_steps} steps without an answer.")

    def _keep(self, drafts: list[Draft]) -> None:
        self.entries += [Entry(0, d.id, self.turn.id, d.body, self.turn.created_at) for d in drafts]
