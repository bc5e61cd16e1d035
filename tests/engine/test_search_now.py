"""Whoever searches finds what was said a moment ago: the index is filled behind the turns, and caught up first."""

from conftest import ALICE
from engine.rooms import Rooms, ask


async def test_what_was_said_a_moment_ago_is_found(rooms: Rooms) -> None:
    """In what was said, and in the list of conversations; nobody waits for the index to be filled by itself."""
    app = await rooms.open()
    for word in ("zebra", "quagga"):
        await ask(app, f"the {word}")
        [asked, *_] = [hit.text for hit in await app.gateway.search(ALICE, word)][::-1]
        assert asked == f"the {word}"
    assert len(await app.gateway.conversations(ALICE, query="quagga")) == 1
