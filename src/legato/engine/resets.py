"""When a talk on a channel begins anew by itself: after a time of silence, or at an hour of the day.

Whether a reset is due is asked when somebody speaks, and answered by when somebody last did; so a restart in between
changes nothing, and what was due happens once.
"""

from contextlib import suppress
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from msgspec import Struct

from legato.errors import BadConfig


class Reset(Struct, frozen=True):
    """A policy: `idle` seconds of silence, or a time of `day` in a time zone; neither is never."""

    idle: float | None = None
    day: tuple[int, int] | None = None
    zone: str = "UTC"

    def due(self, last_at: float, now: float) -> bool:
        if self.idle is not None:
            return now - last_at >= self.idle
        return self.day is not None and last_at < self._last_boundary(self.day, now)

    def _last_boundary(self, day: tuple[int, int], now: float) -> float:
        """The last time that the hour struck, on the clock on the wall."""
        zone = ZoneInfo(self.zone)
        today = datetime.fromtimestamp(now, zone).date()
        for date in (today, today - timedelta(days=1)):
            boundary = datetime(date.year, date.month, date.day, *day, tzinfo=zone).timestamp()
            if boundary <= now:
                return boundary
        return 0.0


def parse(text: str, zone: str) -> Reset:
    """`none`, `idle 30` (minutes) or `daily 04:00`."""
    words = text.split()
    try:
        ZoneInfo(zone)
    except (ValueError, KeyError, OSError) as error:
        raise BadConfig(f"'{zone}' is no time zone; one looks like Europe/Berlin.") from error
    with suppress(ValueError):
        if words in ([], ["none"]):
            return Reset()
        if len(words) == 2 and words[0] == "idle" and float(words[1]) > 0:
            return Reset(idle=float(words[1]) * 60)
        if len(words) == 2 and words[0] == "daily":
            struck = datetime.strptime(words[1], "%H:%M")
            return Reset(day=(struck.hour, struck.minute), zone=zone)
    raise BadConfig(f"'{text}' is no time for a reset. Say 'none', 'idle 30' (minutes) or 'daily 04:00'.")
