from conftest import ALICE
from legato.domain.entries import Message, Text, draft
from legato.domain.handles import Slug
from legato.domain.ids import NodeId
from legato.domain.turns import Input, Outcome, Submission
from legato.store import log, nodes, search, turns

N = NodeId("node_1")


async def test_smoke(db):
    await db.write(nodes.start, N, 30.0, alone=False)
    s = Submission(
        principal=ALICE, target=Slug("work"), input=Input((draft(Message("user", (Text("hello wörld 東京都"),))),))
    )
    a = await db.write(turns.admit, s, N)
    assert a.lease
    more = await db.write(
        turns.finish, a.lease, Outcome(status="done", answer="hi"), [draft(Message("assistant", (Text("hi"),)))]
    )
    assert not more.more
    v = await db.read(log.read_context, a.turn.conversation_id)
    assert [e.body.text for e in v.entries] == ["hello wörld 東京都", "hi"]
    assert await search.index_some(db) == 1
    for q in ["hello", "ello w", "東", "京都", "WÖR"]:
        assert [h.entry.seq for h in await db.read(search.search, ALICE, q)] == [1], q
    assert await db.read(search.search, ALICE, "zzz") == []
