"""Blobs: images and files by reference, never inline in the log. The same bytes of one owner are kept once.

They are put in the transaction that writes what refers to them, and held until it ends: a purge of the last other thing
that refers to them waits, and then sees that they are in use.
"""

from collections.abc import Iterable

from legato.domain.attachments import Blob
from legato.domain.ids import PrincipalId
from legato.store.database import Tx, one


async def put(tx: Tx, principal: PrincipalId, blobs: Iterable[Blob]) -> None:
    """Keep some bytes."""
    for blob in sorted(blobs, key=lambda blob: blob.sha256):  # one order of locks
        await tx.run(
            "add_blob",
            principal=principal,
            sha256=blob.sha256,
            media_type=blob.media_type,
            size=len(blob.data),
            data=blob.data,
        )


async def get(tx: Tx, principal: PrincipalId, hashes: Iterable[str]) -> dict[str, Blob]:
    """Those of the named blobs that this principal has."""
    found: dict[str, Blob] = {}
    for sha256 in hashes:
        if row := await one(tx.run("find_blob", principal=principal, sha256=sha256)):
            found[sha256] = Blob(sha256, row[0], bytes(row[1]))
    return found
