"""What the figures of a store mean."""

from typing import Any

import pytest
from msgspec import structs

from legato.domain.checks import Check
from legato.domain.ids import TurnId
from legato.engine.diagnosis import LONG, judge
from legato.store.figures import Health, Reason, StoreFigures, Waiting

SOUND = Health(StoreFigures("sqlite", 1, 5, 0, 0.0, {"sent": 3}, 0, None), [], "whole")
TURN = TurnId("resp_1")


def check(name: str, *, running: bool = True, **figures: Any) -> Check:
    """What is said of one thing when some figures are different."""
    own = {key: figures.pop(key) for key in ("failed", "search") if key in figures}
    health = structs.replace(SOUND, figures=structs.replace(SOUND.figures, **figures), **own)
    [found] = [check for check in judge(health, running=running) if check.name == name]
    return found


def test_a_sound_store_has_nothing_to_say() -> None:
    assert {check.state for check in judge(SOUND, running=True)} == {"ok"}
    assert [check.advice for check in judge(SOUND, running=False)] == [""] * 5


@pytest.mark.parametrize(
    ("age", "behind", "running", "state", "words"),
    [
        (LONG - 1, False, True, "ok", "300 seconds|299 seconds|5 minutes"),
        (LONG + 1, True, True, "warning", "behind another"),
        (LONG + 1, False, True, "problem", "nobody takes it"),
        (1.0, False, False, "warning", "for a gateway"),
    ],
)
def test_a_turn_that_waits_is_told_by_how_long_and_for_whom(
    age: float, behind: bool, running: bool, state: str, words: str
) -> None:
    """Behind another it is patience; with nobody to take it, a fault."""
    found = check("turns", running=running, waiting=2, oldest_waiting=Waiting(TURN, age, behind))
    assert found.state == state
    assert any(word in found.says for word in words.split("|"))


def test_failures_are_told_with_their_commonest_reason() -> None:
    failed = [Reason("model_unavailable", "No answer.", 3), Reason("attempts_exhausted", "Stopped.", 1)]
    told = check("failures", failed=failed)
    assert (told.state, "4 turns" in told.says, "model_unavailable: No answer." in told.says) == ("warning", True, True)
    assert check("attempts", failed=failed).state == "problem"
    assert check("attempts", failed=failed[:1]).state == "ok"


def test_an_index_that_lags_is_told_and_one_that_is_broken_can_be_mended() -> None:
    assert check("search", unindexed=3, unindexed_age=1.0).state == "ok"
    assert check("search", unindexed=1, unindexed_age=1.0).says == "1 turn is about to be indexed."
    assert check("search", unindexed=3, unindexed_age=LONG + 1).state == "warning"
    assert check("search", unindexed=3, unindexed_age=LONG + 1, running=False).state == "ok"
    assert (check("search", search="broken").state, check("search", search="broken").fix) == ("problem", "search")


@pytest.mark.parametrize(
    ("deliveries", "state"), [({"unknown": 1}, "warning"), ({"dead": 1, "unknown": 1}, "problem"), ({"sent": 9}, "ok")]
)
def test_answers_that_did_not_arrive_are_told(deliveries: dict[str, int], state: str) -> None:
    assert check("deliveries", deliveries=deliveries).state == state
