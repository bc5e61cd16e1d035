"""Blobs: images and files by reference, never inline in the log. The same bytes of one owner are kept once."""

import hashlib

from legato.domain.ids import PrincipalId
from legato.store.database import Tx, one


async def put(tx: Tx, principal: PrincipalId, data: bytes, media_type: str) -> str:
    """Keep some bytes; returns the hash by which they are found."""
    sha256 = hashlib.sha256(data).hexdigest()
    await tx.run("add_blob", principal=principal, sha256=sha256, media_type=media_type, size=len(data), data=data)
    return sha256


async def get(tx: Tx, principal: PrincipalId, sha256: str) -> tuple[str, bytes] | None:
    """The media type and the bytes, if this principal has them."""
    row = await one(tx.run("find_blob", principal=principal, sha256=sha256))
    return (row[0], bytes(row[1])) if row else None
