"""Search: everything ever said, in any script, exactly by substring.

The index is derived from the entries, filled after a turn has ended and off its path, and can be rebuilt. It gives
candidates; each is checked against the entry itself, so a stale or rebuilt index can delay a hit, never invent one.
"""

from collections.abc import Iterator

from msgspec import Struct

from legato.domain.entries import AnyBody, Entry, Message, Note, Reasoning, ToolCall, ToolResult
from legato.domain.grams import MAX_QUERY, contains, grams, normalise, query_grams, tag
from legato.domain.ids import ConversationId, PrincipalId
from legato.errors import BadInput
from legato.store import log, turns
from legato.store.database import Tx

STRETCH = 16_000  # characters of one document; longer texts become several that overlap by a query's length
PAGE = 200


class Hit(Struct, frozen=True):
    """An entry that contains what was looked for."""

    conversation_id: ConversationId
    entry: Entry
    text: str


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


async def index_some(tx: Tx, limit: int = 50) -> int:
    """Index turns that have ended since; returns how many."""
    ended = await tx.run("unindexed_turns", limit=limit)
    for turn_id, conversation_id, first_seq, principal in ended:
        if first_seq is not None:
            for entry in await log.entries_of_turn(tx, await turns.get(tx, turn_id)):
                for piece in _stretches(normalise(text_of(entry.body))):
                    codes = grams(piece) | {tag("y", principal), tag("z", conversation_id)}
                    await _add(tx, conversation_id, entry.seq, " ".join(sorted(codes)))
        await tx.run("mark_indexed", turn=turn_id)
    return len(ended)


async def search(
    tx: Tx, principal: PrincipalId, query: str, *, limit: int = 20, conversation_id: ConversationId | None = None
) -> list[Hit]:
    """Entries of this principal that contain the query, newest first."""
    wanted = normalise(query)
    if not wanted or len(wanted) > MAX_QUERY:
        raise BadInput(f"A search needs 1 to {MAX_QUERY} characters.", param="q")
    tags = [tag("y", principal)] + ([tag("z", conversation_id)] if conversation_id else [])
    hits: list[Hit] = []
    seen: set[tuple[str, int]] = set()
    before = 2**62
    while len(hits) < limit:
        page = await tx.run("search_documents", query=_match(tx, wanted, tags), before=before, limit=max(limit, PAGE))
        for before, found_in, seq in page:  # noqa: B007 - the last one is the cursor of the next page
            if (found_in, seq) not in seen and len(hits) < limit:
                seen.add((found_in, seq))
                hits.extend(await _checked(tx, principal, found_in, seq, wanted))
        if not page:
            break
    return hits


async def rebuild(tx: Tx) -> None:
    """Forget the index; `index_some` fills it again."""
    if tx.dialect == "sqlite":
        await tx.run("clear_grams")
    await tx.run("clear_documents")
    await tx.run("unmark_indexed")


async def _checked(tx: Tx, principal: PrincipalId, conversation_id: ConversationId, seq: int, wanted: str) -> list[Hit]:
    if not await tx.run("find_conversation", id=conversation_id, principal=principal):
        return []
    [entry] = await log.entries_at(tx, conversation_id, seq)
    text = text_of(entry.body)
    return [Hit(conversation_id, entry, text)] if contains(text, wanted) else []


async def _add(tx: Tx, conversation_id: ConversationId, seq: int, codes: str) -> None:
    if tx.dialect == "sqlite":
        [[document]] = await tx.run("add_document", conversation=conversation_id, seq=seq)
        await tx.run("add_grams", id=document, grams=codes)
    else:
        await tx.run("add_document", conversation=conversation_id, seq=seq, grams=codes)


def _match(tx: Tx, wanted: str, tags: list[str]) -> str:
    """The query in the database's own words. Codes are letters and digits, so nothing in them is syntax."""
    codes, prefix = query_grams(wanted)
    if tx.dialect == "sqlite":
        return " ".join([f'"{code}"' for code in codes + tags] + ([f'"{prefix}" *'] if prefix else []))
    return " & ".join([f"'{code}'" for code in codes + tags] + ([f"'{prefix}':*"] if prefix else []))


def _stretches(text: str) -> Iterator[str]:
    for start in range(0, len(text), STRETCH):
        yield text[start : start + STRETCH + MAX_QUERY]
