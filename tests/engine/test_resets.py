"""When a talk begins anew by itself: by the clock on the wall, whatever the clock does."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from legato.engine.resets import Reset, parse
from legato.errors import BadConfig

BERLIN = "Europe/Berlin"


def at(text: str, zone: str = BERLIN, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


@pytest.mark.parametrize(
    ("last", "now", "due"),
    [
        ("2026-11-15 03:59", "2026-11-15 04:01", True),
        ("2026-11-15 04:01", "2026-11-15 23:59", False),
        ("2026-11-15 04:00", "2026-11-16 03:59", False),
        ("2026-11-15 04:01", "2026-11-16 04:00", True),
        ("2026-11-01 12:00", "2026-11-15 03:00", True),
        ("2026-03-28 12:00", "2026-03-29 04:00", True),  # the night that is an hour short
        ("2026-10-24 12:00", "2026-10-25 03:59", False),  # the night that is an hour long
        ("2026-10-24 12:00", "2026-10-25 04:00", True),
    ],
)
def test_a_daily_reset_is_due_when_the_hour_has_struck_since(last: str, now: str, due: bool) -> None:
    assert parse("daily 04:00", BERLIN).due(at(last), at(now)) is due


def test_an_hour_that_strikes_twice_or_not_at_all_resets_once() -> None:
    """02:30 is not there on the one night, and twice on the other."""
    policy = parse("daily 02:30", BERLIN)
    assert policy.due(at("2026-03-28 12:00"), at("2026-03-29 04:00"))
    assert not policy.due(at("2026-03-29 04:00"), at("2026-03-29 23:00"))
    first = at("2026-10-25 02:30")
    assert policy.due(first - 60, first)
    assert not policy.due(first + 60, at("2026-10-25 02:31", fold=1))


def test_an_idle_reset_is_due_after_silence() -> None:
    policy = parse("idle 30", "UTC")
    assert not policy.due(0, 1799)
    assert policy.due(0, 1800)


def test_none_is_never_due() -> None:
    assert parse("none", "UTC") == parse("", "UTC") == Reset()
    assert not Reset().due(0, 1e12)


@pytest.mark.parametrize(
    ("text", "zone", "allowed"),
    [
        *((text, "UTC", "Say 'none', 'idle 30'") for text in ("hourly", "idle", "idle x", "idle 0", "daily 25:00")),
        ("none", "Mars", "one looks like Europe/Berlin"),
        ("none", "../etc", "one looks like Europe/Berlin"),
    ],
)
def test_what_is_no_time_is_said_so_with_what_is(text: str, zone: str, allowed: str) -> None:
    with pytest.raises(BadConfig, match=allowed):
        parse(text, zone)
