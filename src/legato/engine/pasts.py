"""What conversations showed their model before, so that their next turn costs the same however long they are.

Only memory: all of it can be made of the log again, and it is used only where the log still begins so. Where nobody has
written since, which the fence tells, nothing is read; otherwise `store.log.read_on` finds out, and reads the rest.
"""

from collections import OrderedDict
from collections.abc import Iterable

from msgspec import Struct, json

from legato.domain.entries import Item, Setup
from legato.domain.ids import ConversationId, TurnId
from legato.domain.shape import Past
from legato.domain.turns import Turn
from legato.store.log import Begun

ROOM = 64 * 1024 * 1024  # bytes, in all
PER_ITEM = 500  # bytes that an item takes besides its text


class Kept(Struct, frozen=True):
    """The past of a conversation up to a position; where a turn has just ended there also the setup in force, that
    turn, and the fence that the conversation has as long as nobody writes to it."""

    begun: Begun
    past: Past
    setup: Setup | None = None
    turn: TurnId | None = None
    fence: int | None = None

    def is_all(self, turn: Turn, fence: int) -> bool:
        """Whether nobody wrote between that turn and one that has just begun. A fence may come twice, where a database
        was put back to an earlier state; a turn does not."""
        return self.fence == fence - 1 and self.turn == turn.parent_turn

    @property
    def size(self) -> int:
        """At most: a byte of JSON may be a letter of four bytes, and both are kept."""
        return PER_ITEM * len(self.past.items) + 5 * self.past.made(_length)


def _length(items: Iterable[Item]) -> int:
    return len(json.encode(items))


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
