"""Turns: how one status follows another, and how usage adds up."""

from typing import Any, get_args, get_type_hints

from hypothesis import given, settings
from hypothesis import strategies as st

from legato.domain.turns import ENDED, LEGAL, Outcome, Status, Turn, Usage

STATUSES = set(get_args(Status))


def turn_that_is(status: Status) -> Turn:
    """A turn of which nothing else is known."""
    fields: dict[str, Any] = dict.fromkeys(Turn.__struct_fields__)
    return Turn(**(fields | {"status": status}))


def reachable(start: Status) -> set[Status]:
    found: set[Status] = set()
    ahead = [start]
    while ahead:
        for after in LEGAL[ahead.pop()] - found:
            found.add(after)
            ahead.append(after)
    return found


def test_every_status_says_what_may_follow_it() -> None:
    assert set(LEGAL) == STATUSES
    assert all(after <= STATUSES for after in LEGAL.values())


def test_a_turn_has_ended_exactly_when_nothing_may_follow() -> None:
    assert sorted(ENDED) == ["cancelled", "done", "failed", "joined"]
    assert {status for status in STATUSES if not LEGAL[status]} == ENDED
    assert {status for status in STATUSES if turn_that_is(status).ended} == ENDED


def test_a_turn_that_waits_can_come_to_every_end_and_so_can_one_that_runs() -> None:
    """Nothing is stuck: from either open status every status can be reached, an end in at most two steps."""
    assert reachable("queued") == STATUSES
    assert reachable("running") == STATUSES
    assert all(LEGAL[status] & ENDED for status in STATUSES - ENDED)


def test_no_status_follows_itself() -> None:
    assert all(status not in after for status, after in LEGAL.items())


def test_only_a_running_turn_is_done_or_fails() -> None:
    for end in ("done", "failed"):
        assert [status for status in LEGAL if end in LEGAL[status]] == ["running"]


def test_the_outcomes_a_worker_may_report_are_those_that_may_follow_running() -> None:
    outcomes = set(get_args(get_type_hints(Outcome)["status"]))
    assert outcomes == LEGAL["running"] & ENDED


usages = st.builds(Usage, *[st.integers(0, 10**9)] * 5)


@settings(max_examples=100, deadline=None)
@given(usages, usages, usages)
def test_usage_adds_up_field_by_field_in_any_order(a: Usage, b: Usage, c: Usage) -> None:
    assert (a + b) + c == a + (b + c)
    assert a + b == b + a
    assert a + Usage() == a
    assert (a + b).input_tokens == a.input_tokens + b.input_tokens
    assert (a + b).reasoning_tokens == a.reasoning_tokens + b.reasoning_tokens
