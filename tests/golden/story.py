"""A store in which everything has happened once: what `verify` must find sound, and what golden databases hold.

`tell` lives the story through the store's own doors and gives the ids of its characters by name.
"""

from typing import Any

from msgspec import json

from conftest import ALICE, BOB
from legato.domain.attachments import Blob
from legato.domain.entries import (
    Compaction,
    Draft,
    Expand,
    File,
    Hide,
    Image,
    Message,
    Note,
    Pin,
    Reasoning,
    Remove,
    Rewind,
    Setup,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    draft,
)
from legato.domain.events import Answered, AnyEvent, Closed, Delta, Joined, Opened, open_items
from legato.domain.handles import Address, ById, External, Slug
from legato.domain.ids import ConversationId, NodeId, PrincipalId
from legato.domain.turns import After, Dedup, Failure, Input, Lease, Options, Outcome, Submission, Target, Turn, Usage
from legato.store import admission, batches, blobs, directory, keys, log, nodes, outbox, requests, search, turns
from legato.store.database import Database

NODE = NodeId("node_golden")
CHAT = Address("telegram", "bot", "42")
PICTURE = Blob.of(b"\x89PNG a picture \xff\x00", "image/png")
PAPER = Blob.of("a paper of Bob's, 論文".encode(), "text/plain")


def said(text: str, *parts: Any) -> Draft:
    return draft(Message("user", (Text(text), *parts)))


def answer(text: str, *, incomplete: bool = False) -> Draft:
    return draft(Message("assistant", (Text(text),), incomplete=incomplete))


def told(index: int, item: Draft) -> list[AnyEvent]:
    """What followers see of an item that the model wrote."""
    match item.body:
        case ToolCall(call_id=call_id, name=name, arguments=text, client=client):
            opened = Opened(index, item.id, "tool_call", call_id, name, client)
        case Reasoning(text=text):
            opened = Opened(index, item.id, "reasoning")
        case Message(text=text):
            opened = Opened(index, item.id, "message")
        case other:
            raise AssertionError(other)
    half = len(text) // 2
    return [opened, Delta(index, text[:half]), Delta(index, text[half:]), Closed(index)]


class Teller:
    def __init__(self, db: Database) -> None:
        self.db = db
        self.ids: dict[str, str] = {}

    async def admit(
        self, name: str, target: Target, *drafts: Draft, start: bool = True, principal: PrincipalId = ALICE, **more: Any
    ) -> Lease | None:
        """Admit a turn under a name; start what can start."""
        given = Input(drafts, more.pop("options", Options()), more.pop("expects", None))
        submission = Submission(principal=principal, target=target, input=given, **more)
        admitted = await self.db.write(admission.admit, submission, NODE if start else None)
        self.ids[name] = admitted.turn.id
        return admitted.lease

    async def lease(self, name: str, target: Target, *drafts: Draft, **more: Any) -> Lease:
        lease = await self.admit(name, target, *drafts, **more)
        assert lease is not None
        return lease

    async def upkeep(self, name: str, conversation_id: ConversationId, *drafts: Draft, **more: Any) -> None:
        await self.admit(name, ById(conversation_id), *drafts, kind="upkeep", **more)

    async def done(self, lease: Lease, text: str, *more: Draft, first_n: int = 0, index: int = 0) -> Turn:
        last = answer(text)
        ending = await self.db.write(
            turns.finish,
            lease,
            Outcome(status="done", answer=text, usage=Usage(input_tokens=7, output_tokens=3)),
            [*more, last],
            first_n=first_n,
            events=told(index, last),
        )
        return ending.turn

    def after(self, name: str) -> After:
        return After(self.ids[name])  # type: ignore[arg-type]

    async def head(self, conversation_id: ConversationId) -> int:
        return (await self.db.read(log.read_context, conversation_id)).head


async def tell(db: Database) -> dict[str, str]:
    """Live the whole story."""
    teller = Teller(db)
    for principal in (ALICE, BOB):
        await db.write(directory.add_principal, principal)
    await db.write(nodes.start, NODE, 1e6, alone=False)
    await db.write(keys.add, "lg_golden", name="golden", principal=ALICE, scopes=frozenset({"admin"}))
    for name, owner, blob in (("picture", ALICE, PICTURE), ("paper", BOB, PAPER)):
        await db.write(blobs.put, owner, [blob])
        teller.ids[name] = blob.sha256
    await _first_talk(teller)
    await _maintenance(teller)
    await _failure_and_retry(teller)
    await search_all(db)
    await _undone_and_cancelled(teller)
    await _handed_back(teller)
    await _forks(teller)
    await _bobs(teller)
    await _deliveries(teller)
    await teller.done(await teller.lease("last", Slug("gone"), said("Bye.")), "Bye.")
    gone = await db.write(directory.delete, ALICE, Slug("gone"))
    teller.ids["gone"] = gone.id
    empty = await db.write(directory.create, ALICE, title="nothing yet")
    teller.ids["empty"] = empty.id
    assert await db.write(turns.prune_events, -1e6, 1) == 1
    return teller.ids


async def search_all(db: Database) -> None:
    while await search.index_some(db):
        pass


async def _first_talk(teller: Teller) -> None:
    db = teller.db
    lease = await teller.lease(
        "first", Slug("work"), said("How is the weather in Kyoto? 京都の天気は?"), dedup_key="k1"
    )
    main = lease.turn.conversation_id
    teller.ids["main"] = main
    await db.write(directory.bind, ALICE, CHAT, main, move=False)
    setup = draft(Setup("default", "demo", "Be kind.", (Tool("weather", "Looks out.", {"type": "object"}, True),)))
    call = draft(ToolCall("call_1", "weather", '{"city": "Kyoto"}'))
    thought = draft(Reasoning("They want the weather."))
    events = [*told(0, thought), *told(1, call)]
    await db.write(turns.append, lease, [setup, thought, call], events=events)
    result = draft(ToolResult("call_1", "rain, 15 °C"))
    await db.write(
        turns.append,
        lease,
        [result],
        first_n=len(events),
        events=[Answered(2, result.id, "call_1", "rain, 15 °C")],
    )
    await teller.done(lease, "It rains.", first_n=len(events) + 1, index=3)
    picture = Image(blob=teller.ids["picture"], media_type="image/png")
    lease = await teller.lease("second", ById(main), said("And what is this?", picture))
    await teller.done(lease, "A picture.")


async def _maintenance(teller: Teller) -> None:
    main = ConversationId(teller.ids["main"])
    compaction = draft(Compaction(3, "They spoke of the weather.", "demo", "full"))
    await teller.upkeep("compacted", main, compaction, expects=0)
    teller.ids["compaction_seq"] = str(await teller.head(main))
    await teller.upkeep("stale", main, draft(Compaction(2, "too late")), expects=0)
    await teller.upkeep("pinned", main, draft(Pin(1)), draft(Hide(5, 6, "dull")), draft(Note("tidied up", "upkeep")))
    await teller.upkeep("removed", main, draft(Remove(3)))
    dedup = Dedup("made once", "h")
    made = await teller.db.write(requests.once, ALICE, dedup, lambda tx: directory.create(tx, ALICE))
    teller.ids["made"] = made.conversation.id


async def _failure_and_retry(teller: Teller) -> None:
    db, main = teller.db, ConversationId(teller.ids["main"])
    lease = await teller.lease("failed", teller.after("second"), said("Tell me more."))
    call = draft(ToolCall("call_2", "weather", "{}"))
    await db.write(turns.append, lease, [call], events=told(0, call))
    failure = Failure("model_unavailable", "The model did not answer.")
    await db.write(turns.finish, lease, Outcome(status="failed", failure=failure))

    lease = await teller.lease("retry", teller.after("second"), said("Tell me more, please."))
    assert lease.turn.conversation_id == main
    call = draft(ToolCall("call_3", "weather", '{"more": true}'))
    await db.write(turns.append, lease, [call], events=told(0, call))
    assert await teller.admit("steered", ById(main), said("In one word."), busy="steer") is None
    result = draft(ToolResult("call_3", "fog", is_error=True))
    await db.write(turns.append, lease, [result], first_n=4, events=[Answered(1, result.id, "call_3", "fog", True)])
    [joined] = await db.write(turns.absorb, lease)
    await db.write(batches.add, lease, 5, [Joined(joined.id)])
    await teller.done(lease, "Fog.", first_n=6, index=2)
    await teller.upkeep("expanded", main, draft(Expand(int(teller.ids["compaction_seq"]))))


async def _undone_and_cancelled(teller: Teller) -> None:
    db, main = teller.db, ConversationId(teller.ids["main"])
    before = await teller.head(main)
    await teller.done(await teller.lease("undone", ById(main), said("Forget this.")), "Forgotten.")
    await teller.upkeep("rewound", main, draft(Rewind(before)))
    await teller.admit("cancelled", ById(main), said("Never mind."), start=False)
    await db.write(turns.cancel, ALICE, teller.ids["cancelled"])  # type: ignore[arg-type]


async def _handed_back(teller: Teller) -> None:
    """A turn that its process handed back, and that went on; then one that was in a hurry."""
    db, main = teller.db, ConversationId(teller.ids["main"])
    lease = await teller.lease("resumed", ById(main), said("Take your time."))
    cut = answer("Let me", incomplete=True)
    opened = [Opened(0, cut.id, "message"), Delta(0, "Let me")]
    await db.write(batches.add, lease, 0, opened)
    await db.write(turns.release, lease)
    lease_again = await db.write(turns.claim, main, NODE)
    assert lease_again is not None
    assert lease_again.turn.id == lease.turn.id
    await db.write(turns.append, lease_again, [cut], first_n=2, events=[Closed(0, incomplete=True)])
    await teller.done(lease_again, "Let me see: yes.", first_n=3, index=1)
    await teller.done(await teller.lease("interrupting", ById(main), said("Quick!"), busy="interrupt"), "Yes?")


async def _forks(teller: Teller) -> None:
    db = teller.db
    lease = await teller.lease("forked", teller.after("first"), said("And in Nara? 奈良は?"))
    teller.ids["fork"] = lease.turn.conversation_id
    assert teller.ids["fork"] != teller.ids["main"]
    call = draft(ToolCall("call_4", "look", "{}", client=True))
    await db.write(turns.finish, lease, Outcome(status="done"), [call], events=told(0, call))
    lease = await teller.lease("answered", teller.after("forked"), draft(ToolResult("call_4", "deer")))
    await teller.done(lease, "There are deer.")

    await teller.admit("unwritten", teller.after("forked"), said("no"), start=False)
    await db.write(turns.cancel, ALICE, teller.ids["unwritten"])  # type: ignore[arg-type]
    unwritten = await db.read(turns.find, ALICE, teller.ids["unwritten"])  # type: ignore[arg-type]
    fork2 = unwritten.conversation_id
    teller.ids["fork2"] = fork2
    await teller.done(await teller.lease("later", ById(fork2), said("Later.")), "Later it is.")
    await teller.upkeep("pinned2", fork2, draft(Pin(1)), draft(Compaction(2, "Weather.", "demo")))
    lease = await teller.lease("deep", teller.after("unwritten"), said("Deeper."))
    teller.ids["fork3"] = lease.turn.conversation_id
    await teller.done(lease, "As deep as it goes.")


async def _bobs(teller: Teller) -> None:
    db = teller.db
    paper = File(blob=teller.ids["paper"], name="paper.txt", media_type="text/plain")
    lease = await teller.lease(
        "running", External("session 7 é"), said("Read this.", paper), principal=BOB, dedup_key="k1", request_hash="h"
    )
    teller.ids["bobs"] = lease.turn.conversation_id
    await db.write(batches.add, lease, 0, [Opened(0, draft(Reasoning()).id, "reasoning"), Delta(0, "It says")])
    await teller.admit(
        "waiting", External("session 7 é"), said("And?"), principal=BOB, options=Options(params={"temperature": 0.5})
    )


async def _deliveries(teller: Teller) -> None:
    for status, message in (("sent", "m1"), ("unknown", None), ("dead", None)):
        delivery = await teller.db.write(outbox.take, NODE)
        assert delivery is not None
        await teller.db.write(outbox.settle, delivery.id, NODE, status, message)
    assert await teller.db.write(outbox.take, NODE) is not None


async def go_on(db: Database, conversation_ids: list[str]) -> None:
    """The next chapter: a restart, what ran is taken over, what waited runs, and new turns come by every name."""
    node = NodeId("node_heir")
    await db.write(nodes.start, node, 1e6, alone=True)
    for conversation_id in conversation_ids:
        while lease := await db.write(turns.claim, ConversationId(conversation_id), node):
            _, events = await db.read(turns.events_from, lease.turn.id, 0)
            closing = [Closed(index, incomplete=True) for index in open_items(events)]
            outcome = Outcome(status="cancelled")
            await db.write(turns.finish, lease, outcome, first_n=len(events), events=closing)
    for principal, name in ((ALICE, Slug("work")), (ALICE, CHAT), (BOB, External("session 7 é"))):
        given = Input((said("Do you remember?"),))
        admitted = await db.write(admission.admit, Submission(principal=principal, target=name, input=given), node)
        assert admitted.lease is not None
        await db.write(turns.finish, admitted.lease, Outcome(status="done", answer="Yes."), [answer("Yes.")])
    await search_all(db)


async def seen(db: Database, conversation_ids: list[str]) -> dict[str, Any]:
    """What people and models see of a store, as JSON would say it."""
    view = {
        "conversations": {conversation_id: await _seen(db, conversation_id) for conversation_id in conversation_ids},
        "found": {q: [h.entry.id for h in await db.read(search.search, ALICE, q)] for q in ("京都", "weather", "in")},
    }
    plain: dict[str, Any] = json.decode(json.encode(view))
    return plain


async def _seen(db: Database, conversation_id: str) -> dict[str, Any]:
    id = ConversationId(conversation_id)
    view = await db.read(log.read_context, id)
    listed = await db.read(turns.of_conversation, id, 0, 1000)
    return {
        "transcript": [[e.seq, e.id, e.turn_id, e.body] for e in await db.read(log.read_transcript, id)],
        "context": {
            "setup": view.setup,
            "summary": view.summary,
            "entries": [e.seq for e in view.entries],
            "head": view.head,
            "control": view.control,
        },
        "aliases": sorted(map(list, await db.read(directory.names, id))),
        "turns": [[turn.id, turn.kind, turn.status, turn.usage, turn.failure and turn.failure.code] for turn in listed],
    }
