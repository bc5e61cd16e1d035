"""Upkeep: the verbs that change what is seen of a log. Each of them is an entry, and waits its place like a turn.

They are part of the gateway, and stand here to be read alone.
"""

from abc import abstractmethod
from collections.abc import Iterable
from typing import get_args

from legato.domain.conversations import Conversation
from legato.domain.entries import (
    AnyBody,
    Compaction,
    Entry,
    Expand,
    Hide,
    Item,
    Pin,
    Remove,
    Rewind,
    draft,
    kind_of,
)
from legato.domain.folding import EXCHANGES
from legato.domain.handles import ById, Handle
from legato.domain.ids import ConversationId, PrincipalId
from legato.domain.turns import Dedup, Input, Submission, Turn, Usage
from legato.engine.compaction import SummaryFailed, failure_note
from legato.engine.keeping import Keeping
from legato.engine.worker import Worker
from legato.errors import BadInput, LegatoError, Stale
from legato.logs import logger
from legato.store import log
from legato.store.database import Database


class Upkeep(Keeping):
    """Add, rewind, compact, summarise, expand, remove, pin, hide."""

    def __init__(self, db: Database, worker: Worker) -> None:
        super().__init__(db, worker)
        self._summarising: set[ConversationId] = set()
        worker.on_long = self._summarise_soon

    @abstractmethod
    async def submit(self, submission: Submission) -> Turn: ...

    async def add(
        self,
        principal: PrincipalId,
        handle: Handle,
        bodies: Iterable[AnyBody],
        *,
        dedup: Dedup | None = None,
    ) -> Turn:
        """Append items without running the agent. They wait their place and never move the tip."""
        return await self._upkeep(principal, handle, bodies, dedup=dedup)

    async def rewind(self, principal: PrincipalId, handle: Handle, to: int, *, dedup: Dedup | None = None) -> Turn:
        """Hide everything after a position, from people and models alike."""
        return await self._upkeep(principal, handle, [Rewind(to)], positions={"to": to}, least=0, dedup=dedup)

    async def compact(
        self,
        principal: PrincipalId,
        handle: Handle,
        upto: int,
        summary: str,
        *,
        expects: int | None = None,
        dedup: Dedup | None = None,
    ) -> Turn:
        """Let a summary stand for everything up to a position."""
        body = Compaction(upto, summary, by=principal, why="by hand")
        return await self._upkeep(principal, handle, [body], positions={"upto": upto}, expects=expects, dedup=dedup)

    async def summarise(
        self,
        principal: PrincipalId,
        handle: Handle,
        *,
        why: str = "by hand",
        focus: str = "",
        exchanges: int = 1,
        dedup: Dedup | None = None,
    ) -> Turn | None:
        """Let a summary that is made now stand for the past, all but the last exchanges; None when there is nothing
        to fold. No lease is held while it is made; a control that comes meanwhile makes it void."""
        conversation = await self.find(principal, handle)
        view = await self._db.read(log.read_context, conversation.id)
        cast = self._worker.roster.cast(view.setup.agent if view.setup is not None else None)
        compactor = self._worker.compactor
        plan = compactor.plan(view, (await compactor.budget(cast))[0] // 2, exchanges=exchanges)
        if plan is None:
            return None
        try:
            made = await compactor.compact(cast, view, plan, why=why, focus=focus)
        except SummaryFailed as error:
            await self._upkeep(principal, handle, [failure_note(error).body])
            raise
        bodies = [d.body for d in made.drafts]
        return await self._upkeep(principal, handle, bodies, expects=view.control, usage=made.usage, dedup=dedup)

    def _summarise_soon(self, turn: Turn) -> None:
        if turn.conversation_id not in self._summarising:
            self._summarising.add(turn.conversation_id)
            self._worker.background(self._summarise_long(turn))

    async def _summarise_long(self, turn: Turn) -> None:
        """In the background, at most once while the context grows by a step."""
        handle = ById(turn.conversation_id)
        try:
            view = await self._db.read(log.read_context, turn.conversation_id)
            cast = self._worker.roster.cast(turn.input.options.agent)
            if await self._worker.compactor.worth_trying(view, cast):
                why = "the context has grown long"
                await self.summarise(turn.principal, handle, why=why, exchanges=EXCHANGES)
        except LegatoError as error:  # the next turns are answered without it
            logger.info("no summary", conversation=turn.conversation_id, code=error.code, error=error.message)
        finally:
            self._summarising.discard(turn.conversation_id)

    async def summary_in_force(self, conversation: Conversation) -> int | None:
        """The position of the compaction that stands for the past of a conversation that was read."""
        return await self._db.read(log.summary_in_force, conversation.id)

    async def position(self, conversation: Conversation, entry_id: str) -> int | None:
        """Where an entry of a conversation that was read is, also one that nobody sees any more."""
        return await self._db.read(log.position, conversation.id, entry_id)

    async def told_by_id(self, principal: PrincipalId, entry_ids: Iterable[str]) -> list[Entry]:
        """What was said to a principal, by the ids of the entries alone; without what is there no more."""
        return await self._db.read(log.told, principal, entry_ids)

    async def expand(self, principal: PrincipalId, handle: Handle, of: int, *, dedup: Dedup | None = None) -> Turn:
        """Void the compaction, pin, hide or removal at a position."""
        await self._check_kind(principal, handle, of, (Compaction, Pin, Hide, Remove), "of")
        return await self._upkeep(principal, handle, [Expand(of)], positions={"of": of}, dedup=dedup)

    async def remove(self, principal: PrincipalId, handle: Handle, at: int) -> Turn:
        """Take an entry out of sight, for people and models alike."""
        await self._check_kind(principal, handle, at, get_args(Item), "at")
        return await self._upkeep(principal, handle, [Remove(at)], positions={"at": at})

    async def pin(self, principal: PrincipalId, handle: Handle, at: int) -> Turn:
        """Keep an entry verbatim in the context."""
        await self._check_kind(principal, handle, at, get_args(Item), "at")
        return await self._upkeep(principal, handle, [Pin(at)], positions={"at": at})

    async def hide(self, principal: PrincipalId, handle: Handle, first: int, last: int) -> Turn:
        """Take a span out of the context; people still see it."""
        if first > last:
            raise BadInput("A span ends where it begins, or later.")
        positions = {"first": first, "last": last}
        return await self._upkeep(principal, handle, [Hide(first, last, why="by hand")], positions=positions)

    async def _check_kind(
        self, principal: PrincipalId, handle: Handle, position: int, kinds: tuple[type, ...], param: str
    ) -> None:
        conversation = await self.find(principal, handle)
        body = await self._db.read(log.body_at, conversation.id, position)
        if body is not None and not isinstance(body, kinds):
            raise BadInput(f"Position {position} holds a {kind_of(body)}; that cannot be done to it.", param=param)

    async def _upkeep(
        self,
        principal: PrincipalId,
        handle: Handle,
        bodies: Iterable[AnyBody],
        *,
        positions: dict[str, int] | None = None,
        least: int = 1,
        expects: int | None = None,
        usage: Usage | None = None,
        dedup: Dedup | None = None,
    ) -> Turn:
        conversation = await self.find(principal, handle)
        for name, position in (positions or {}).items():
            if not least <= position <= conversation.head_seq:
                message = f"There is no position {position}; the log ends at {conversation.head_seq}."
                raise BadInput(message, param=name)
        turn = await self.submit(
            Submission(
                principal=principal,
                target=ById(conversation.id),
                input=Input(tuple(draft(body) for body in bodies), expects=expects, usage=usage),
                kind="upkeep",
                dedup_key=dedup.key if dedup else None,
                request_hash=dedup.request_hash if dedup else None,
            )
        )
        turn = await self.ended(turn)
        if turn.failure is not None:
            raise Stale(turn.failure.message)
        if turn.status != "done":
            raise Stale("It was cancelled before its turn came; nothing was written.")
        return turn
