"""Search: everything ever said, in any script, exactly by substring.

The index is derived from the entries, filled after a turn has ended and off its path, and can be rebuilt. It gives
candidates; each is checked against the entry itself, so a stale or rebuilt index can delay a hit, never invent one.
"""

import asyncio
from collections.abc import Iterator

from msgspec import Struct, json

from legato.domain.conversations import Conversation
from legato.domain.entries import AnyBody, Entry, Message, Note, Reasoning, ToolCall, ToolResult
from legato.domain.grams import MAX_QUERY, contains, grams, normalise, query_grams, tag
from legato.domain.ids import ConversationId, PrincipalId, TurnId
from legato.errors import BadInput, Unreadable
from legato.logs import logger
from legato.store import directory, log
from legato.store.database import Database, Row, Tx, one

STRETCH = 16_000  # characters of one document; longer texts become several that overlap by a query's length
PAGE = 200
SOME = 100  # turns that are indexed at once
MUCH = 1_000_000  # characters of codes after which it is enough for once: whoever writes meanwhile waits for them
MOMENT = 0.02  # seconds in which another process has added what it is adding
ERA = 20_000  # documents that PostgreSQL's index knows as one time; the migration says the same number
MOST_HITS = 1000  # entries that a search for conversations looks at


class Hit(Struct, frozen=True):
    """An entry that contains what was looked for."""

    conversation_id: ConversationId
    entry: Entry
    text: str


class _Document(Struct, frozen=True):
    """A stretch of an entry's text, as codes."""

    conversation_id: ConversationId
    seq: int
    grams: str


def text_of(body: AnyBody) -> str:
    """What can be found of an entry."""
    match body:
        case Message(text=text) | Reasoning(text=text) | Note(text=text):
            return text
        case ToolCall(name=name, arguments=arguments):
            return f"{name} {arguments}"
        case ToolResult(output=output):
            return output
        case _:
            return ""


async def index_some(db: Database, limit: int = SOME) -> int:
    """Index turns that have ended since; returns how many. The work is done as a reader; the writer only inserts."""
    ended = await db.read(_documents, limit)
    return await db.write(_add, ended) if ended else 0


async def catch_up(db: Database, most: int) -> None:
    """Index what has ended up to now, in at most so many steps. What another process is adding is there in a moment."""
    for _ in range(most):
        ended = await db.read(_documents, SOME)
        if not ended:
            return
        if not await db.write(_add, ended):
            await asyncio.sleep(MOMENT)


async def _documents(tx: Tx, limit: int) -> list[tuple[TurnId, list[_Document]]]:
    """What to index of the turns that ended: of some, and of no more than one when that is much."""
    ended, much = [], 0
    for turn_id, principal, conversation_id, first, last in await tx.run("unindexed_turns", limit=limit):
        tags = {tag("y", principal), tag("z", conversation_id)}
        wrote = first is not None and last is not None
        documents = [
            _Document(conversation_id, entry.seq, " ".join(sorted(grams(piece) | tags)))
            for entry in (await _readable(tx, conversation_id, first, last) if wrote else ())
            for piece in _stretches(normalise(text_of(entry.body)))
        ]
        ended.append((turn_id, documents))
        much += sum(len(document.grams) for document in documents)
        if much > MUCH:
            break
    return ended


async def _readable(tx: Tx, conversation_id: ConversationId, first: int, last: int) -> list[Entry]:
    """Entries, or none where one of them cannot be read: the others are searched all the same."""
    try:
        return await log.entries_at(tx, conversation_id, first, last)
    except Unreadable as error:
        logger.error("this cannot be searched", conversation=conversation_id, error=error.message)
        return []


async def _add(tx: Tx, ended: list[tuple[TurnId, list[_Document]]]) -> int:
    """Add what nobody else has added or is adding; returns for how many turns."""
    marked = await tx.run("mark_indexed", turns=json.encode([turn_id for turn_id, _ in ended]).decode())
    ours = {turn_id for (turn_id,) in marked}
    added = sum(turn_id in ours for turn_id, _ in ended)
    documents = [document for turn_id, of_turn in ended if turn_id in ours for document in of_turn]
    if tx.dialect == "postgres":
        rows = [{"conversation": d.conversation_id, "seq": d.seq, "grams": d.grams} for d in documents]
        await tx.many("add_document", rows)
        return added
    [[last]] = await tx.run("last_document")
    places = json.encode([(d.conversation_id, d.seq) for d in documents]).decode()
    await tx.run("add_documents", last=last, places=places)
    await tx.run("add_grams", last=last, grams=json.encode([d.grams for d in documents]).decode())
    return added


async def search(
    tx: Tx, principal: PrincipalId, query: str, *, limit: int = 20, conversation_id: ConversationId | None = None
) -> list[Hit]:
    """Entries of this principal that contain the query, newest first."""
    wanted = normalise(query)
    if not wanted or len(wanted) > MAX_QUERY:
        raise BadInput(f"A search needs 1 to {MAX_QUERY} characters.", param="q")
    tags = [tag("y", principal)] + ([tag("z", conversation_id)] if conversation_id else [])
    match, size = _match(tx, wanted, tags), 2 * limit  # most candidates are hits
    checked = _Checked(tx, principal, wanted, limit)
    before = 2**62
    stages = await _stages(tx, within=conversation_id is not None)
    if not conversation_id and len(wanted) < 3 and wanted.isascii():  # a letter is everywhere, and so in what is newest
        before = await checked.take(before, await tx.run("latest_documents", principal=principal, limit=PAGE))
        if not checked.enough:  # of others; of this principal it is
            before = await checked.take(before, await _page(tx, stages[0], _joined(tx, tags), before, PAGE))
    for since in stages:
        while not checked.enough:
            page = await _page(tx, since, match, before, size)
            before = await checked.take(before, page)
            if len(page) < size:
                break
            size = max(size, PAGE)
        before = min(before, since or before)
    return checked.hits


async def _page(tx: Tx, since: int, query: str, before: int, limit: int) -> list[Row]:
    """Documents that hold all the codes of a query, newest first."""
    if not since:
        return await tx.run("search_documents", query=query, before=before, limit=limit)
    return await tx.run("search_lately", query=query, before=before, limit=limit, since=since)


async def _stages(tx: Tx, *, within: bool) -> list[int]:
    """How far back to look at first, then, and at last (0: to the beginning). FTS5 goes from the newest document on;
    PostgreSQL finds all there are before it sorts them, so what is said all the time is looked for in the latest eras
    first."""
    if tx.dialect == "sqlite":
        return [0]
    [[newest, _]] = await tx.run("begin_search")
    return [*(since for eras in (1, 7) if (since := newest - eras * ERA) > 0 and not within), 0]


async def conversations(
    tx: Tx,
    principal: PrincipalId,
    query: str,
    limit: int,
    after: ConversationId | None = None,
    kind: str | None = None,
) -> list[Conversation]:
    """Conversations in which the query was said, or whose title or slug contains it, newest first."""
    wanted = normalise(query)
    piece = max(wanted.split(), key=len, default="") if wanted.isascii() else ""
    named = {found for found, name in await directory.named(tx, principal, piece) if contains(name, wanted)}
    said = {hit.conversation_id for hit in await search(tx, principal, query, limit=MOST_HITS)}
    return await directory.newest(tx, principal, limit, after, kind, among=named | said)


async def rebuild(tx: Tx) -> None:
    """Forget the index; `index_some` fills it again."""
    if tx.dialect == "sqlite":
        await tx.run("clear_grams")
    await tx.run("clear_documents")
    await tx.run("unmark_indexed")


class _Checked:
    """The candidates that are hits, up to a limit."""

    def __init__(self, tx: Tx, principal: PrincipalId, wanted: str, limit: int) -> None:
        self._tx, self._principal, self._wanted, self._limit = tx, principal, wanted, limit
        self._seen: set[tuple[ConversationId, int]] = set()
        self._removed: dict[ConversationId, set[int]] = {}  # what is out of sight, for those who read it
        self.hits: list[Hit] = []

    @property
    def enough(self) -> bool:
        return len(self.hits) >= self._limit

    async def take(self, before: int, page: list[Row]) -> int:
        """Look at candidates, newest first; returns where the next ones are to begin."""
        for before, conversation_id, seq in page:  # noqa: B007 - the last one is the cursor of the next page
            if (conversation_id, seq) not in self._seen and not self.enough:
                self._seen.add((conversation_id, seq))
                await self._check(conversation_id, seq)
        return before

    async def _check(self, conversation_id: ConversationId, seq: int) -> None:
        tx, reader = self._tx, conversation_id
        if reader not in self._removed and not await tx.run("find_by_id", id=reader, principal=self._principal):
            heir = await one(tx.run("living_fork", id=conversation_id, seq=seq, principal=self._principal))
            if heir is None:
                return
            reader = heir[0]
        if reader not in self._removed:
            self._removed[reader] = await log.removed(tx, reader)
        if seq in self._removed[reader]:
            return
        for entry in await _readable(tx, conversation_id, seq, seq):  # none: the index is stale
            text = text_of(entry.body)
            if contains(text, self._wanted):
                self.hits.append(Hit(reader, entry, text))


def _match(tx: Tx, wanted: str, tags: list[str]) -> str:
    """The query in the database's own words. Codes are letters and digits, so nothing in them is syntax."""
    codes, prefix = query_grams(wanted)
    return _joined(tx, codes + tags, prefix)


def _joined(tx: Tx, codes: list[str], prefix: str | None = None) -> str:
    if tx.dialect == "sqlite":
        return " ".join([f'"{code}"' for code in codes] + ([f'"{prefix}" *'] if prefix else []))
    return " & ".join([f"'{code}'" for code in codes] + ([f"'{prefix}':*"] if prefix else []))


def _stretches(text: str) -> Iterator[str]:
    for start in range(0, len(text), STRETCH):
        yield text[start : start + STRETCH + MAX_QUERY]
