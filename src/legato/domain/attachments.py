"""Attachments: bytes travel as data URLs and are kept as blobs; the log holds the reference only.

`detach` takes the bytes out of a body before it is written, `attach` puts them back for a model or a client.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote_to_bytes

from msgspec import Struct, structs

from legato.domain.entries import AnyBody, File, Image, Message, Part, Text, ToolResult

HOLDERS = (Message, ToolResult)  # what may hold attachments; asked of every entry of a request, so it is made once
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w-]+=[^;,]*)*(;base64)?,(.*)", re.DOTALL | re.IGNORECASE)


class Blob(Struct, frozen=True):
    """Some bytes, named by their hash."""

    sha256: str
    media_type: str
    data: bytes

    @classmethod
    def of(cls, data: bytes, media_type: str) -> "Blob":
        return cls(hashlib.sha256(data).hexdigest(), media_type, data)

    @property
    def url(self) -> str:
        return f"data:{self.media_type};base64,{base64.b64encode(self.data).decode()}"


def is_inline(url: str | None) -> bool:
    """Whether a URL carries its bytes in itself."""
    return url is not None and url[:5].lower() == "data:"


def blob_of(url: str) -> Blob:
    """The bytes that a data URL carries; a ValueError when it is not well-formed."""
    match = _DATA_URL.fullmatch(url)
    if match is None:
        raise ValueError("A data URL has the form 'data:image/png;base64,…'.")
    data = base64.b64decode(match[3], validate=True) if match[2] else unquote_to_bytes(match[3])
    return Blob.of(data, match[1] or "text/plain")


def has_inline(body: AnyBody) -> bool:
    """Whether a body carries bytes that belong in a blob."""
    return isinstance(body, HOLDERS) and any(
        isinstance(part, Image | File) and is_inline(part.url) for part in body.parts
    )


def detach(body: AnyBody, blobs: dict[str, Blob]) -> AnyBody:
    """The body with references where it had bytes; these are put into `blobs`."""
    if not isinstance(body, HOLDERS) or not has_inline(body):
        return body
    parts: list[Part] = []
    for part in body.parts:
        if isinstance(part, Image | File) and part.url is not None and is_inline(part.url):
            blob = blob_of(part.url)
            blobs[blob.sha256] = blob
            parts.append(structs.replace(part, url=None, blob=blob.sha256, media_type=blob.media_type))
        else:
            parts.append(part)
    return structs.replace(body, parts=tuple(parts))


def references(bodies: Iterable[AnyBody]) -> set[str]:
    """The hashes of the blobs that bodies refer to."""
    return set(referred(bodies))


def referred(bodies: Iterable[AnyBody]) -> tuple[str, ...]:
    """The same, in order, as often as they are referred to."""
    found = []
    for body in bodies:
        if isinstance(body, HOLDERS):
            for part in body.parts:
                if not isinstance(part, Text) and part.blob is not None:
                    found.append(part.blob)
    return tuple(found)


def attach(body: AnyBody, blobs: Mapping[str, Blob]) -> AnyBody:
    """The body with bytes where it had references."""
    if not isinstance(body, HOLDERS) or not references([body]):
        return body
    return structs.replace(body, parts=tuple(_attached(part, blobs) for part in body.parts))


def _attached(part: Part, blobs: Mapping[str, Blob]) -> Part:
    if isinstance(part, Image | File) and part.blob is not None and part.blob in blobs:
        blob = blobs[part.blob]  # the same bytes may have been sent before, as something else
        return structs.replace(
            part, url=Blob(blob.sha256, part.media_type or blob.media_type, blob.data).url, blob=None, media_type=None
        )
    return part
