"""Search finds exactly what was said, in any script, on both databases, for its owner only."""

import asyncio
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from legato.domain.entries import (
    AnyBody,
    Compaction,
    File,
    Image,
    Message,
    Note,
    Reasoning,
    Rewind,
    Setup,
    Text,
    ToolCall,
    ToolResult,
    draft,
)
from legato.domain.grams import MAX_QUERY, contains, normalise
from legato.domain.handles import ById, Slug
from legato.domain.ids import ConversationId, NodeId, PrincipalId, new_id
from legato.domain.turns import After, Failure, Input, Lease, Outcome, Submission
from legato.errors import BadInput
from legato.store import admission, directory, log, nodes, search, turns
from legato.store.database import Database, Tx
from legato.store.migrate import migrations
from legato.store.search import PAGE, STRETCH, Hit
from legato.store.statements import statements

ALICE, BOB = PrincipalId("alice"), PrincipalId("bob")  # as the fixtures made them
NODE = NodeId("node_1")
EVERYTHING = 100_000


# -- writing


def said(text: str) -> Message:
    return Message("user", (Text(text),))


async def begin(db: Database, name: str, bodies: Iterable[AnyBody], principal: PrincipalId = ALICE) -> Lease:
    """A turn that has its input and still runs."""
    await db.write(nodes.start, NODE, 600.0, alone=False)
    given_ = Input(tuple(draft(body) for body in bodies))
    admitted = await db.write(admission.admit, Submission(principal=principal, target=Slug(name), input=given_), NODE)
    assert admitted.lease is not None
    return admitted.lease


async def write(
    db: Database, name: str, *texts: str, principal: PrincipalId = ALICE, bodies: Sequence[AnyBody] = ()
) -> ConversationId:
    """A turn that has ended, with these texts as its input and these bodies as its output."""
    lease = await begin(db, name, [said(text) for text in texts], principal)
    await db.write(turns.finish, lease, Outcome(status="done"), [draft(body) for body in bodies])
    return lease.turn.conversation_id


async def index(db: Database) -> None:
    while await search.index_some(db):
        pass


async def find(
    db: Database,
    query: str,
    principal: PrincipalId = ALICE,
    *,
    limit: int = EVERYTHING,
    within: ConversationId | None = None,
) -> list[Hit]:
    return await db.read(search.search, principal, query, limit=limit, conversation_id=within)


def places(hits: Iterable[Hit]) -> list[tuple[ConversationId, int]]:
    return [(hit.conversation_id, hit.entry.seq) for hit in hits]


async def found(db: Database, query: str) -> list[str]:
    """The texts that a query finds, newest first."""
    return [hit.text for hit in await find(db, query)]


# -- the truth is the substring

CORPUS = {
    "east-asia": (
        "我们明天去北京大学，然后去颐和园。",
        "東京都は日本の首都です。東京タワーへ行きたい！",
        "京都の東にある",
        "ｶﾀｶﾅとカタカナ、ＡＢＣ１２３とabc123",
        "대한민국 서울특별시 강남구",
        "\u1112\u1161\u11ab\uae00 자모",
        "𠮷野家で𩸽を食べる",
    ),
    "elsewhere": (
        "สวัสดีครับ ผมชื่อสมชาย อยากกินข้าวผัด",
        "مرحبا بالعالم، كيف حالك اليوم؟",
        "שָׁלוֹם עולם \u202eabc\u202c",
        "Привет, мир! Ёлка и ЁЛКА",
        "नमस्ते दुनिया, क्षत्रिय",
        "ΣΊΣΥΦΟΣ και Σίσυφος",
        "Straße STRASSE strasse",
    ),
    "latin": (
        "The quick brown fox jumps over the lazy dog. The dog sleeps.",
        "cafe\u0301 and caf\u00e9, naïve, re\u0301sume\u0301, A\u030angstro\u0308m, ﬁne ﬂow",
        "xyz xxyyzz x0001 yalice zconv x y z 0123456789abcdefghijklmnopqrstuvw",
        "   leading and\ttabs\n\nand   many    spaces   ",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "ABABABAB abab BABA",
    ),
    "machine": (
        "/srv/app/src/legato/store/search.py:42: error: Incompatible types [arg-type]",
        "def f(x: int) -> str:\n    return f\"{x!r}\" + 'it''s' # ¯\\_(ツ)_/¯",
        "C:\\Users\\Ålice\\файл.txt",
        "3.14159 2026-07-27T12:00:00Z 192.168.0.1 +49 (30) 1234-5678",
        "SELECT * FROM t WHERE a = 'b' AND c NEAR d OR NOT e; --",
        'a:b* "quoted phrase" & | ! <-> (nested (parens)) ^ {braces} a+b -minus',
        "nul\x00bell\x07end \u200bzero\u200dwidth\ufeff",
    ),
    "pictures": (
        "👍 ok 👍🏽 👩‍👩‍👧‍👦 family 🏳️‍🌈",
        "🙂🙃🙂",
        "½ ´ ™ ﷺ Ⅷ ㍿ ①",
        "混合 mixed 텍스트 смешанный 🙂 نص ١٢٣",
    ),
}
TEXTS = [text for texts in CORPUS.values() for text in texts]


def wide(text: str) -> str:
    return "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)


def spread(text: str) -> str:
    return text.replace(" ", " \u3000\n")


WAYS: tuple[Callable[[str], str], ...] = (
    *(str, str, str, str.upper, str.lower, str.swapcase, wide, spread),
    *(lambda text: unicodedata.normalize("NFD", text), lambda text: unicodedata.normalize("NFKC", text)),
)


@st.composite
def queries(draw: st.DrawFn) -> str:
    """A piece of something that was said, one way or another; or, now and then, anything."""
    if draw(st.integers(0, 9)) == 9:
        return draw(st.text(max_size=8) | st.text("ab 東京.*\"'", max_size=5))
    text = draw(st.sampled_from(TEXTS))
    start = draw(st.integers(0, len(text) - 1))
    length = draw(st.integers(1, 3) | st.integers(1, 40))
    way = draw(st.sampled_from(WAYS))
    return way(text[start : start + length])


class Library(NamedTuple):
    db: Database
    said: dict[tuple[ConversationId, int], str]


@pytest.fixture
async def library(db: Database) -> Library:
    """Many conversations in many scripts, indexed."""
    written: dict[tuple[ConversationId, int], str] = {}
    for name, texts in CORPUS.items():
        half = len(texts) // 2
        for piece, first in ((texts[:half], 1), (texts[half:], half + 1)):
            conversation = await write(db, name, *piece)
            written |= {(conversation, seq): text for seq, text in enumerate(piece, first)}
    await write(db, "noise", *TEXTS, principal=BOB)
    await index(db)
    return Library(db, written)


@settings(max_examples=350, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=queries())
@example(query="x")
@example(query="y")
@example(query="z")
@example(query="\x00")
@example(query="´")
@example(query="x0001")
@example(query="0 x")
async def test_any_query_finds_exactly_the_entries_that_contain_it(library: Library, query: str) -> None:
    """One character or forty, across spaces and punctuation, in any case or width."""
    if not normalise(query):
        with pytest.raises(BadInput):
            await find(library.db, query)
        return
    hits = await find(library.db, query)
    truth = {place for place, text in library.said.items() if contains(text, query)}
    assert sorted(places(hits)) == sorted(truth)
    assert all(library.said[place] == hit.text for place, hit in zip(places(hits), hits, strict=True))


small_texts = st.text("aB é東京.🙂ｶ" + "\u0301\n", max_size=14) | st.text(max_size=14)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(small_texts, min_size=1, max_size=8),
    looked_for=st.lists(small_texts, max_size=3),
    cuts=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 13), st.integers(1, 14)), min_size=4, max_size=4),
)
async def test_whatever_is_said_is_found_by_each_of_its_pieces(
    db: Database, texts: list[str], looked_for: list[str], cuts: list[tuple[int, int, int]]
) -> None:
    """Random texts, each example in a conversation of its own."""
    conversation = await write(db, new_id("c"), *texts)
    await index(db)
    pieces = [texts[which % len(texts)][start : start + length] for which, start, length in cuts]
    for query in filter(normalise, [*looked_for, *pieces]):
        truth = [(conversation, seq) for seq, text in enumerate(texts, 1) if contains(text, query)]
        assert places(await find(db, query, within=conversation)) == truth[::-1]


async def test_people_find_what_they_would_expect(library: Library) -> None:
    """The truth itself, by examples that need no definition."""
    for query, text in {
        "京": "京都の東にある",
        "東京": "東京都は日本の首都です。東京タワーへ行きたい！",
        "北京大学": "我们明天去北京大学，然后去颐和园。",
        "カタカナ": "ｶﾀｶﾅとカタカナ、ＡＢＣ１２３とabc123",
        "abc123": "ｶﾀｶﾅとカタカナ、ＡＢＣ１２３とabc123",
        "서울특별": "대한민국 서울특별시 강남구",
        "한글": "\u1112\u1161\u11ab\uae00 자모",
        "ข้าวผัด": "สวัสดีครับ ผมชื่อสมชาย อยากกินข้าวผัด",
        "العالم": "مرحبا بالعالم، كيف حالك اليوم؟",
        "ПРИВЕТ": "Привет, мир! Ёлка и ЁЛКА",
        "σίσυφος": "ΣΊΣΥΦΟΣ και Σίσυφος",
        "strasse straße": "Straße STRASSE strasse",
        "CAFÉ": "cafe\u0301 and caf\u00e9, naïve, re\u0301sume\u0301, A\u030angstro\u0308m, ﬁne ﬂow",
        "fine flow": "cafe\u0301 and caf\u00e9, naïve, re\u0301sume\u0301, A\u030angstro\u0308m, ﬁne ﬂow",
        "fox jumps": "The quick brown fox jumps over the lazy dog. The dog sleeps.",
        "legato/store/": "/srv/app/src/legato/store/search.py:42: error: Incompatible types [arg-type]",
        ".168.": "3.14159 2026-07-27T12:00:00Z 192.168.0.1 +49 (30) 1234-5678",
        "🙃": "🙂🙃🙂",
        "𩸽": "𠮷野家で𩸽を食べる",
    }.items():
        assert text in await found(library.db, query), query
    for query in ("京北", "foxjumps", "quick fox", "3.15", "🙃🙃", "résumée"):
        assert await found(library.db, query) == [], query


# -- query syntax is only text


SYNTAX = (
    *('"', '""', '"a"', "*", "a*", ":", "grams:a", "&", "|", "!", "a & b", "a | !b", "<->", "(", ")", "(a", "()"),
    *("AND", "OR", "NOT", "NEAR", "NEAR(a b, 5)", "a AND b", "\\", "\\'", "'", "''", "' OR 1=1 --", "%", "_", "^a"),
    *("{a b}: c", "-a", "+", "a + b", ":*", "':*", "$1", "?1", ":query", "{now}", "\x00", ";"),
)


async def test_query_syntax_is_only_text(db: Database) -> None:
    """It finds the entries that say it, and none that a query language would have found."""
    plain = ["a b c alpha beta grams now query and or not near", "plain"]
    texts = [*plain, *(text for syntax in SYNTAX for text in (f"<<{syntax}>>", f"x{syntax}y{syntax}z"))]
    await write(db, "c", *texts)
    await index(db)
    for syntax in SYNTAX:
        assert await found(db, syntax) == [text for text in reversed(texts) if contains(text, syntax)], syntax
        assert await found(db, f"<<{syntax}>>") == [f"<<{syntax}>>"], syntax


# -- bounds of a query


async def test_a_search_for_nothing_or_for_too_much_is_refused(db: Database) -> None:
    for query in ("", " ", "\n\t\u3000", "n" * (MAX_QUERY + 1), "東" * 5000):
        with pytest.raises(BadInput) as refused:
            await find(db, query)
        assert refused.value.param == "q"


async def test_the_longest_query_is_answered(db: Database) -> None:
    """Two hundred characters, no two grams alike."""
    longest = "".join(chr(0x4E00 + 7 * n) for n in range(MAX_QUERY))
    await write(db, "c", f"before {longest} after", longest[:-1], longest[::-1])
    await index(db)
    assert await found(db, longest) == [f"before {longest} after"]
    assert await found(db, f"  {longest}\n") == [f"before {longest} after"]


# -- long entries


async def test_a_needle_is_found_in_every_region_of_a_very_long_entry(db: Database) -> None:
    """A hundred thousand characters; needles of every size before, across and after each stretch of the index."""
    hay = [chr(0x4E00 + (n * 7919) % 20_000) for n in range(100_000)]
    needles: dict[str, int] = {}
    for border in range(0, len(hay), STRETCH):
        for at, length in ((-201, 200), (-1, 2), (1, 1), (3, 40), (60, 200), (262, 3)):
            start = border + at
            if start >= 0 and start + length <= len(hay):
                needle = "".join(chr(0xAC00 + len(needles) * 211 + n) for n in range(length))
                hay[start : start + length] = needle
                needles[needle] = start
    needle = "the very end"
    hay[-len(needle) :] = needle
    needles[needle] = len(hay) - len(needle)
    text = "".join(hay)
    assert normalise(text) == text
    assert all(text.index(needle) == start for needle, start in needles.items())

    conversation = await write(db, "long", "short", text, "short too")
    await index(db)
    for needle, start in needles.items():
        assert places(await find(db, needle)) == [(conversation, 2)], (start, len(needle))
        around = text[max(0, start - 3) : start + len(needle) + 3][:MAX_QUERY]
        assert places(await find(db, around)) == [(conversation, 2)], (start, len(around))
    for border in range(STRETCH, len(text), STRETCH):  # the longest query, wherever the border cuts it
        for before in (MAX_QUERY, MAX_QUERY - 1, MAX_QUERY // 2, 2, 1, 0):
            query = text[border - before : border - before + MAX_QUERY]
            assert places(await find(db, query)) == [(conversation, 2)], (border, before)
    assert await find(db, "a needle that is not there") == []


async def test_words_across_a_stretch_of_the_index_are_found_with_the_space_between_them(db: Database) -> None:
    """Wherever the border falls: in a word, before, in or after the space."""
    for shift in range(8):
        text = "-" * (STRETCH - shift) + " one two " + "-" * 50
        await write(db, f"s{shift}", text)
    await index(db)
    for query in ("one two", "- one", "two -", " one", "e t", "o -", "w"):
        assert len(await find(db, query)) == 8, query


async def test_grams_that_are_all_there_in_another_order_are_no_hit(db: Database) -> None:
    """The index alone would name it; the entry itself does not contain it."""
    await write(db, "c", "abcd bcde", "bcde abcd", "abcde")
    await index(db)
    assert await found(db, "abcde") == ["abcde"]


# -- whose, and where


async def test_nobody_finds_what_another_said(db: Database) -> None:
    """The same words by two principals, under the same name."""
    mine = await write(db, "shared", "our secret word", "only mine")
    theirs = await write(db, "shared", "our secret word", "only theirs", principal=BOB)
    await index(db)
    assert places(await find(db, "secret")) == [(mine, 1)]
    assert places(await find(db, "secret", BOB)) == [(theirs, 1)]
    assert places(await find(db, "e")) == [(mine, 2), (mine, 1)]
    assert await find(db, "theirs") == []
    assert await find(db, "secret", PrincipalId("nobody")) == []
    assert await find(db, "secret", within=theirs) == []
    assert await find(db, "secret", BOB, within=mine) == []


async def test_an_owner_with_a_similar_name_is_another_owner(db: Database) -> None:
    conversation = await write(db, "c", "a secret")
    await index(db)
    assert places(await find(db, "secret", PrincipalId("alice"))) == [(conversation, 1)]
    similar = ("alic", "alicea", "ALICE", "alice ", "", "yalice", "Ａlice", "alice\x00", "alice' | 'x", 'alice" OR "x')
    for other in similar:
        assert await find(db, "secret", PrincipalId(other)) == [], other


async def test_a_search_may_be_of_one_conversation(db: Database) -> None:
    one = await write(db, "one", "the same words", "and others")
    other = await write(db, "other", "the same words")
    await index(db)
    assert places(await find(db, "same words")) == [(other, 1), (one, 1)]
    assert places(await find(db, "same words", within=one)) == [(one, 1)]
    assert places(await find(db, "s", within=other)) == [(other, 1)]
    assert await find(db, "others", within=other) == []
    assert await find(db, "same words", within=ConversationId("conv_unknown")) == []


# -- what can be found


async def test_everything_that_was_said_or_done_can_be_found(db: Database) -> None:
    """Messages of every role, reasoning, tool calls and their results, notes; by name, arguments, output."""
    outcome: list[AnyBody] = [
        Message("assistant", (Text("needle in an answer"), Image(url="u"), Text(" of two parts"))),
        Message("system", (Text("needle in a system message"),)),
        Reasoning("needle in a thought"),
        ToolCall("call_1", "needle_tool", '{"path": "/etc/hosts"}'),
        ToolResult("call_1", "needle in a result", is_error=True),
        Note("needle in a note"),
        Message("user", (File(name="no words"),)),
    ]
    conversation = await write(db, "c", "needle in a question", bodies=outcome)
    await index(db)
    assert places(await find(db, "needle")) == [(conversation, seq) for seq in (7, 6, 5, 4, 3, 2, 1)]
    assert places(await find(db, "answer of two")) == [(conversation, 2)]
    assert places(await find(db, "needle_tool")) == [(conversation, 5)]
    assert places(await find(db, "/etc/hosts")) == [(conversation, 5)]


async def test_a_hit_is_the_entry_as_it_stands_in_the_log(db: Database) -> None:
    conversation = await write(db, "c", "first", "Second\x00 🙂")
    await index(db)
    [hit] = await find(db, "second")
    assert hit.text == "Second\x00 🙂"
    assert hit.entry == (await db.read(log.read_transcript, conversation))[1]


async def test_what_was_compacted_or_undone_is_still_found(db: Database) -> None:
    """Search shows everything: a compaction changes only what the model sees, an undo only what is shown."""
    conversation = await write(db, "c", "the old plan", "the older plan")
    for body in (Compaction(2, "a summary"), Rewind(0)):
        given_ = Input((draft(body),))
        upkeep = Submission(principal=ALICE, target=ById(conversation), input=given_, kind="upkeep")
        await db.write(admission.admit, upkeep, NODE)
    await index(db)
    assert await db.read(log.read_transcript, conversation) == []
    assert places(await find(db, "plan")) == [(conversation, 2), (conversation, 1)]


async def test_what_upkeep_posted_is_found(db: Database) -> None:
    conversation = await write(db, "c", "hello")
    given_ = Input((draft(said("posted by a client")), draft(Setup("agent", "model"))))
    upkeep = Submission(principal=ALICE, target=ById(conversation), input=given_, kind="upkeep")
    await db.write(admission.admit, upkeep, NODE)
    await index(db)
    assert places(await find(db, "posted")) == [(conversation, 2)]


async def test_a_running_turn_is_found_once_it_ended(db: Database) -> None:
    """However it ended, and all of it: its input, what it wrote on the way, its last words."""
    failure = Failure("model_unavailable", "The model did not answer.")
    ends = (Outcome(status="done"), Outcome(status="failed", failure=failure), Outcome(status="cancelled"))
    for outcome in ends:
        lease = await begin(db, outcome.status, [said("asked early")])
        conversation = lease.turn.conversation_id
        await db.write(turns.append, lease, [draft(said("said midway"))])
        await index(db)
        assert await find(db, "a", within=conversation) == []
        await db.write(turns.finish, lease, outcome, [draft(said("at last"))])
        await index(db)
        assert places(await find(db, "a", within=conversation)) == [(conversation, seq) for seq in (3, 2, 1)]


async def test_a_turn_that_never_began_says_nothing(db: Database) -> None:
    """Cancelled while it waited: its input never came into the log."""
    lease = await begin(db, "c", [said("first")])
    waiting = Submission(principal=ALICE, target=Slug("c"), input=Input((draft(said("never heard")),)))
    admitted = await db.write(admission.admit, waiting, NODE)
    await db.write(turns.cancel, ALICE, admitted.turn.id)
    await db.write(turns.finish, lease, Outcome(status="done"))
    await index(db)
    assert await found(db, "never heard") == []
    assert await found(db, "first") == ["first"]


async def test_a_fork_adds_only_what_it_says_itself(db: Database) -> None:
    """What a fork inherits is found once, where it was said."""
    lease = await begin(db, "c", [said("common ground")])
    await db.write(turns.finish, lease, Outcome(status="done"))
    parent = await write(db, "c", "common onward")
    again = Submission(principal=ALICE, target=After(lease.turn.id), input=Input((draft(said("common fork")),)))
    admitted = await db.write(admission.admit, again, NODE)
    assert admitted.lease is not None
    await db.write(turns.finish, admitted.lease, Outcome(status="done"))
    await index(db)
    fork = admitted.turn.conversation_id
    assert fork != parent
    assert places(await find(db, "common")) == [(fork, 2), (parent, 2), (parent, 1)]


# -- order and limit


async def test_the_newest_comes_first_and_a_limit_keeps_the_newest(db: Database) -> None:
    expected = []
    for n in range(6):
        conversation = await write(db, f"c{n % 2}", f"needle {n}", "hay", f"{n} needle")
        expected += [(conversation, 3 * (n // 2) + 1), (conversation, 3 * (n // 2) + 3)]
        if n % 2:
            await index(db)
    expected.reverse()
    assert places(await find(db, "needle")) == expected
    for limit in (1, 2, 5, 11, 12, 13):
        assert places(await find(db, "needle", limit=limit)) == expected[:limit]
        assert places(await find(db, "e", limit=limit)) == expected[:limit]


async def test_a_letter_is_found_in_what_one_said_though_others_said_much_since(db: Database) -> None:
    """Newest first, however far back, and only what holds it; nothing of the others is looked at one by one."""
    for n in range(3):
        await write(db, f"mine-{n}", f"a quiet word {n}", f"another {n}")
    await write(db, "loud", *(f"quite loud {n}" for n in range(search.PAGE + 10)), principal=BOB)
    await index(db)
    assert await found(db, "q") == [f"a quiet word {n}" for n in (2, 1, 0)]
    assert [hit.text for hit in await find(db, "ot", limit=2)] == ["another 2", "another 1"]
    assert await found(db, "zq") == []


async def test_a_search_that_looks_at_the_latest_first_finds_the_same(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eras of two documents, so that every stage begins in the middle of something."""
    monkeypatch.setattr(search, "ERA", 2)
    expected = []
    for n in range(40):
        conversation = await write(db, f"c{n % 3}", f"needle {n}" if n % 3 else f"hay {n}")
        expected += [(conversation, n // 3 + 1)] if n % 3 else []
    await index(db)
    for limit in (1, 2, 3, 12, 26, 50):
        assert places(await find(db, "needle", limit=limit)) == expected[::-1][:limit]


def test_the_index_knows_the_eras_that_search_asks_for() -> None:
    """The number stands in the index, in the statement that uses it, and here."""
    assert statements("postgres")["search_lately"].text.count(f"/ {search.ERA}") == 3
    assert f"array[id / {search.ERA}]" in migrations("postgres")[7].text


async def test_conversations_are_found_by_what_they_are_called(db: Database) -> None:
    """In any case, width or spacing, wherever in the title or the slug."""
    titles = ["The Garden", "Ｇａｒｄｅｎ wide", "gar  den\tplan", "100%_sure\\", "Straße", "東京タワー", ""]
    called: dict[str, list[str]] = {}
    for number, title in enumerate(titles):
        slug = Slug(f"Plan_{number}.x")
        conversation = await write(db, slug.value, "hello")
        await db.write(directory.rename, ALICE, slug, title)
        called[conversation] = [title, slug.value]
    await write(db, "garden", "hello", principal=BOB)
    await index(db)
    for query in (
        "garden",
        "GARDEN w",
        "gar den p",
        "den",
        "%_s",
        "\\",
        "_",
        "%",
        "strasse",
        "京タ",
        "plan_3",
        "n_",
        ".x",
        "!",
    ):
        found_ = {c.id for c in await db.read(search.conversations, ALICE, query, 50)}
        assert found_ == {c for c, names in called.items() if any(contains(n, query) for n in names)}, query
    plans = await db.read(search.conversations, ALICE, "plan", 50)
    assert plans == sorted(plans, key=lambda c: (c.updated_at, c.id), reverse=True)  # two may be of one millisecond
    newest = [c.id for c in plans]
    assert set(newest) == set(called)
    assert [c.id for c in await db.read(search.conversations, ALICE, "plan", 50, newest[2])] == newest[3:]
    assert [c.id for c in await db.read(search.conversations, ALICE, "plan", 2, None, "chat")] == newest[:2]
    assert await db.read(search.conversations, ALICE, "plan", 2, None, "run") == []


async def test_an_input_that_joined_a_running_turn_is_found_once_and_in_its_place(db: Database) -> None:
    """Steering: said after the turn's own input and before its answer, and so it is found between them."""
    lease = await begin(db, "c", [said("needle one")])
    steer = Submission(principal=ALICE, target=Slug("c"), input=Input((draft(said("needle two")),)), busy="steer")
    await db.write(admission.admit, steer, NODE)
    await db.write(turns.absorb, lease)
    await index(db)
    await db.write(turns.finish, lease, Outcome(status="done"), [draft(said("needle three"))])
    await index(db)
    assert await found(db, "needle") == ["needle three", "needle two", "needle one"]


async def test_a_hit_behind_many_pages_of_false_candidates_is_found(db: Database) -> None:
    """More entries than a page holds have all the grams of the query and do not contain it."""
    conversation = await write(db, "c", "abcde first", "abcde second", *["abcd bcde"] * (2 * PAGE + 5), "abcde third")
    await index(db)
    last = 2 * PAGE + 8
    assert places(await find(db, "abcde")) == [(conversation, last), (conversation, 2), (conversation, 1)]
    assert places(await find(db, "abcde", limit=2)) == [(conversation, last), (conversation, 2)]


async def test_a_long_entry_is_one_hit_however_often_it_says_it(db: Database) -> None:
    text = "needle and hay " * (3 * STRETCH // 15)
    conversation = await write(db, "c", text, "one needle")
    await index(db)
    assert places(await find(db, "needle")) == [(conversation, 2), (conversation, 1)]
    assert places(await find(db, "needle", limit=2)) == [(conversation, 2), (conversation, 1)]


# -- the index is derived


async def test_a_rebuilt_index_finds_the_same(library: Library) -> None:
    """And while it is being rebuilt it finds less, never something else."""
    queries_ = [*(text[n : n + 1 + n % 9] for n, text in enumerate(TEXTS) if normalise(text[n : n + 1 + n % 9])), "a"]

    async def all_found() -> list[list[tuple[ConversationId, int]]]:
        """In one order: turns that ended in one millisecond may stand in the index either way."""
        return [sorted(places(await find(library.db, query))) for query in queries_]

    before = await all_found()
    assert all(before)
    await library.db.write(search.rebuild)
    assert [await find(library.db, query) for query in queries_] == [[]] * len(queries_)
    await search.index_some(library.db, 3)
    for query, all_of_it in zip(queries_, before, strict=True):
        assert set(places(await find(library.db, query))) <= set(all_of_it)
    await index(library.db)
    assert await all_found() == before


async def test_what_is_long_is_indexed_in_steps(db: Database) -> None:
    """Whoever writes meanwhile waits for one step, not for all; short turns go together."""
    for stride in (7_919, 7_907, 7_901):
        words = "".join(chr(0x4E00 + place * stride % 20_000) for place in range(150_000))
        await write(db, f"long-{stride}", f"{words} needle")
    for n in range(5):
        await write(db, f"short-{n}", f"needle {n}")
    steps = []
    while step := await search.index_some(db):
        steps.append(step)
    assert steps == [1, 1, 1, 5]
    assert len(await find(db, "needle")) == 8


async def test_indexing_by_two_at_once_finds_each_entry_once(db: Database) -> None:
    for n in range(5):
        await write(db, f"c{n}", f"needle {n}")
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(index(db))
    assert sorted(await found(db, "needle")) == [f"needle {n}" for n in range(5)]
    assert await search.index_some(db) == 0


async def test_whoever_catches_up_waits_for_what_another_process_is_adding(db: Database) -> None:
    """It would search without it."""
    if db.dialect == "sqlite":
        pytest.skip("one process writes")
    await write(db, "c", "needle")
    added, committed = asyncio.Event(), asyncio.Event()

    async def adds(tx: Tx) -> None:
        await search._add(tx, await search._documents(tx, 100))
        added.set()
        await committed.wait()

    other = asyncio.create_task(db.write(adds))
    await added.wait()
    catching_up = asyncio.create_task(search.catch_up(db, 1_000))
    assert not (await asyncio.wait({catching_up}, timeout=0.2))[0]
    committed.set()
    await other
    await catching_up
    assert await found(db, "needle") == ["needle"]


async def test_the_index_outlives_a_restart(reopen) -> None:  # type: ignore[no-untyped-def]
    db = await reopen()
    await write(db, "c", "said before")
    await index(db)
    await write(db, "c", "said later")
    db = await reopen()
    assert await found(db, "said") == ["said before"]
    await index(db)
    assert await found(db, "said") == ["said later", "said before"]
