"""Verify: the store re-proved, rule by rule.

Files are edited, bits flip, programs have bugs. Here every rule of the schema and of the log is checked again from
the rows themselves, as if nothing had enforced it, and whatever breaks one is named: the rule, the place, the words.

It goes conversation by conversation. Each is read on one snapshot, page by page, so this runs beside a living gateway,
and its memory grows with the turns of the longest conversation, not with the store. What cannot be read is a finding,
too; a store that does not answer is an error.
"""

import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from legato.domain.ids import ConversationId, PrincipalId
from legato.errors import StoreUnavailable
from legato.store.database import Database, P, Row, T, Transaction, Tx
from legato.store.migrate import migrations
from legato.store.statements import Dialect
from legato.store.verify.conversation import prove
from legato.store.verify.rules import Finding, Rule

__all__ = ["Finding", "Rule", "verify"]

BLOBS = 100
_MADE = re.compile(r"^(create|drop) (?:unique |virtual )?(?:table|index|trigger) (?:if (?:not )?exists )?(\w+)", re.M)


async def verify(
    db: Database, progress: Callable[[int, int], None] = lambda checked, total: None
) -> AsyncGenerator[Finding, None]:
    """Everything that is wrong with a store. `progress` hears how many of how many conversations are checked."""
    for check in (_file, _schema, _references, _uniqueness, _documents):
        for finding in await _found(db, "database", check):
            yield finding
    async for finding in _all_blobs(db):
        yield finding
    async for finding in _all_conversations(db, progress):
        yield finding


async def _all_conversations(db: Database, progress: Callable[[int, int], None]) -> AsyncIterator[Finding]:
    counted = await _tried(db, "conversations", _asked, "verify_count")
    if isinstance(counted, Finding):
        yield counted
        return
    [[total]] = counted
    conversation_id, checked = ConversationId(""), 0
    while True:
        progress(checked, max(checked, total))
        where = f"what follows conversation '{conversation_id}'"  # that anything speaks of, there or not
        following = await _tried(db, where, _asked, "verify_next", after=conversation_id)
        if isinstance(following, Finding):
            yield following
            return
        [[conversation_id]] = following
        if conversation_id is None:
            return
        for finding in await _found(db, conversation_id, prove, conversation_id):
            yield finding
        checked += 1


async def _all_blobs(db: Database) -> AsyncIterator[Finding]:
    last: dict[str, Any] = {"principal": "", "sha256": ""}
    while page := await _tried(db, f"blobs after {(*last.values(),)}", _asked, "verify_blobs", **last, limit=BLOBS):
        if isinstance(page, Finding):
            yield page
            return
        for principal, sha256, size in page:
            last = {"principal": principal, "sha256": sha256}
            for finding in await _found(db, f"blob {principal}/{sha256}", _blob, principal, sha256, size):
                yield finding


async def _tried(
    db: Database, where: str, transaction: Transaction[P, T], *args: P.args, **kwargs: P.kwargs
) -> T | Finding:
    """What a transaction reads, or the finding that it cannot be read, if the store answers at all."""
    try:
        return await db.read(transaction, *args, **kwargs)
    except (StoreUnavailable, UnicodeDecodeError) as error:
        await db.read(_asked, "clock")
        return Finding(Rule.readable, where, str(error))


async def _found(
    db: Database, where: str, check: Transaction[P, list[Finding]], *args: P.args, **kwargs: P.kwargs
) -> list[Finding]:
    found = await _tried(db, where, check, *args, **kwargs)
    return [found] if isinstance(found, Finding) else found


async def _file(tx: Tx) -> list[Finding]:
    if tx.dialect == "postgres":  # it checks its pages when it reads them (data checksums)
        return []
    await tx.run("look_anew")
    return [Finding(Rule.file, "database", line) for (line,) in await tx.run("verify_file") if line != "ok"]


async def _schema(tx: Tx) -> list[Finding]:
    """Data alone does not show that a guard is gone."""
    present = {name for (name,) in await tx.run("verify_objects")}
    missing = sorted(made_by_migrations(tx.dialect) - present)
    return [Finding(Rule.schema, name, "the schema has lost it, or it is switched off") for name in missing]


def made_by_migrations(dialect: Dialect) -> set[str]:
    """The names of the tables, indexes and triggers of the newest schema."""
    made: set[str] = set()
    for migration in migrations(dialect):
        for verb, name in _MADE.findall(migration.text):
            (made.add if verb == "create" else made.discard)(name)
    return made


async def _references(tx: Tx) -> list[Finding]:
    rows = await tx.run("verify_references")
    found = [Finding(Rule.reference, row, f"refers to {missing}, which is not there") for row, missing in rows]
    for table, rowid, parent in await tx.run("verify_foreign_keys") if tx.dialect == "sqlite" else ():
        found.append(Finding(Rule.reference, f"{table} row {rowid}", f"refers to one of {parent} that is not there"))
    return found


async def _uniqueness(tx: Tx) -> list[Finding]:
    """What is unique in the whole store."""
    found: list[Finding] = []
    for principal, key, count in await tx.run("verify_dedup"):
        told = f"{count} turns were admitted for one submission"
        found.append(Finding(Rule.dedup, f"{principal}/dedup key {key}", told))
    for address, count in await tx.run("verify_addresses"):
        found.append(Finding(Rule.address, f"address {address}", f"means {count} conversations"))
    for address, count in await tx.run("verify_in_flight"):
        found.append(Finding(Rule.delivery, f"address {address}", f"{count} answers are in flight at once"))
    return found


async def _documents(tx: Tx) -> list[Finding]:
    what = "its place and its grams do not go together; rebuild the search index"
    return [Finding(Rule.search, f"search document {id}", what) for (id,) in await tx.run("verify_documents")]


async def _blob(tx: Tx, principal: PrincipalId, sha256: str, size: int) -> list[Finding]:
    found: list[Finding] = []
    where = f"blob {principal}/{sha256}"
    for _, data in await tx.run("find_blob", principal=principal, sha256=sha256):  # none: taken away since
        if not isinstance(data, bytes):
            found.append(Finding(Rule.value, where, f"its data is of type {type(data).__name__}"))
            continue
        if len(data) != size:
            found.append(Finding(Rule.blob, where, f"is said to have {size} bytes, and has {len(data)}"))
        if hashlib.sha256(data).hexdigest() != sha256:
            found.append(Finding(Rule.blob, where, "its bytes have another hash"))
    return found


async def _asked(tx: Tx, /, statement: str, **params: object) -> list[Row]:
    return await tx.run(statement, **params)
