"""What long conversations showed their model before, so that their next turn costs about what a short one's does.

Only memory: all of it can be made of the log again, and it is used only where the log still begins so, which
`store.log.read_context` finds out. A conversation whose view is at hand when its turn is claimed is not kept here.
"""

from collections import OrderedDict

from msgspec import Struct

from legato.domain.ids import ConversationId
from legato.domain.shape import Past
from legato.domain.window import Known
from legato.engine import tokens

ROOM = 64 * 1024 * 1024  # bytes, in all
PER_ITEM = 500  # bytes that an item takes besides its text, which is there twice: as it is, and as it is sent


class Kept(Struct, frozen=True):
    """The past of a conversation up to a position."""

    known: Known
    past: Past

    @property
    def size(self) -> int:
        return PER_ITEM * len(self.past.items) + 2 * self.past.made(tokens.bytes_of)


class Pasts:
    """The pasts of the conversations that were used last."""

    def __init__(self, room: int = ROOM) -> None:
        self._room, self._taken = room, 0
        self._kept: OrderedDict[ConversationId, Kept] = OrderedDict()

    def get(self, conversation_id: ConversationId) -> Kept | None:
        return self._kept.get(conversation_id)

    def put(self, conversation_id: ConversationId, kept: Kept) -> None:
        self.drop(conversation_id)
        self._kept[conversation_id] = kept
        self._taken += kept.size
        while self._taken > self._room:
            self.drop(next(iter(self._kept)))

    def drop(self, conversation_id: ConversationId) -> None:
        old = self._kept.pop(conversation_id, None)
        if old is not None:
            self._taken -= old.size
