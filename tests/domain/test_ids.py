"""Ids are unique, whoever draws them at the same time, and those of turns are in the order of time."""

import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from legato.domain.ids import new_id, new_turn_id


def test_an_id_is_its_prefix_and_128_bits() -> None:
    drawn = {new_id("msg_") for _ in range(2000)}
    assert len(drawn) == 2000
    assert all(re.fullmatch("msg_[0-9a-f]{32}", each) for each in drawn)


def test_ids_of_turns_are_in_the_order_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    for moment in (1.0, 1_700_000_000.5, 1_700_000_000.5001, 1_700_000_001.25, 4_294_967_295.0):
        monkeypatch.setattr("time.time", lambda moment=moment: moment)
        drawn.append(new_turn_id())
    assert drawn == sorted(drawn)
    assert all(re.fullmatch("resp_[0-9a-f]{44}", each) for each in drawn)


def test_threads_draw_different_ids() -> None:
    with ThreadPoolExecutor(8) as pool:
        drawn = [each for some in pool.map(lambda _: [new_id("") for _ in range(5000)], range(8)) for each in some]
    assert len(set(drawn)) == 40_000


def test_a_fork_draws_different_ids() -> None:
    new_id("")  # there are some at hand
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, "".join(new_id("") for _ in range(300)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    theirs = {text[i : i + 32] for i in range(0, len(text), 32)}
    assert len(theirs) == 300
    assert not theirs & {new_id("") for _ in range(300)}
