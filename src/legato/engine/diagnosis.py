"""What the figures of a store mean: in order, or for somebody to look at. Pure: no store, no clock."""

from legato.domain.checks import Check, State
from legato.store.figures import Health, Waiting

LONG = 300.0  # seconds that a turn may wait, or the search index may lag, before somebody should know
EXHAUSTED = "attempts_exhausted"
REBUILD = "search"


def judge(health: Health, *, running: bool) -> list[Check]:
    """One check for each thing that may need attention. `running`: a gateway is at work on this store."""
    return [_waiting(health, running), _failed(health), _exhausted(health), _search(health, running), _owed(health)]


def _waiting(health: Health, running: bool) -> Check:
    count, oldest = health.figures.waiting, health.figures.oldest_waiting
    if oldest is None:
        return Check("turns", "ok", "No turn waits.")
    if not running:
        return Check("turns", "warning", f"{_turns(count)} for a gateway.", "Start one with `legato serve`.")
    if oldest.age < LONG:
        return Check("turns", "ok", f"{_turns(count)}, the oldest for {_seconds(oldest.age)}.")
    return _late(count, oldest)


def _late(count: int, oldest: Waiting) -> Check:
    says = f"{_turns(count)}, {oldest.turn} for {_seconds(oldest.age)}"
    if oldest.behind:
        return Check(
            "turns",
            "warning",
            f"{says}, behind another of its conversation.",
            "Wait for that one, or cancel it: `POST /v1/responses/{id}/cancel`.",
        )
    return Check("turns", "problem", f"{says}, and nobody takes it.", "Look for errors in the gateway's log.")


def _failed(health: Health) -> Check:
    count = sum(reason.count for reason in health.failed)
    if not count:
        return Check("failures", "ok", "No turn failed in the last 24 hours.")
    commonest = health.failed[0]
    why = f"the commonest reason ({commonest.count}) is {commonest.code}: {commonest.message}"
    says = f"{count} {'turn' if count == 1 else 'turns'} failed in the last 24 hours; {why}"
    return Check("failures", "warning", says, "Mend the cause; what was said is kept and can be sent again.")


def _exhausted(health: Health) -> Check:
    count = sum(reason.count for reason in health.failed if reason.code == EXHAUSTED)
    if not count:
        return Check("attempts", "ok", "No turn was given up.")
    says = f"{count} {'turn was' if count == 1 else 'turns were'} given up: the gateway stopped in it again and again."
    return Check("attempts", "problem", says, "Look for what ends the process: memory, a watchdog, a crash in its log.")


def _search(health: Health, running: bool) -> Check:
    figures = health.figures
    if health.search == "broken":
        advice = "`legato doctor --fix` rebuilds it; nothing that was said is lost."
        return Check("search", "problem", "The search index is not whole.", advice, REBUILD)
    if figures.unindexed and running and figures.unindexed_age > LONG:
        says = f"{_are(figures.unindexed)} not in the search index, the oldest for {_seconds(figures.unindexed_age)}."
        return Check("search", "warning", says, "It fills itself; look for errors in the gateway's log if it does not.")
    if figures.unindexed:
        return Check("search", "ok", f"{_are(figures.unindexed)} about to be indexed.")
    return Check("search", "ok", "Search knows every turn.")


def _owed(health: Health) -> Check:
    owed = {status: health.figures.deliveries.get(status, 0) for status in ("dead", "unknown")}
    if not any(owed.values()):
        return Check("deliveries", "ok", "No answer is stuck on its way.")
    state: State = "problem" if owed["dead"] else "warning"
    says = " and ".join(
        f"{count} {words}"
        for count, words in ((owed["dead"], "could not be delivered"), (owed["unknown"], "may or may not have arrived"))
        if count
    )
    advice = "`GET /v1/deliveries` lists yours; `POST /v1/deliveries/{id}/resend` tries one again."
    return Check("deliveries", state, f"Of the answers owed, {says}.", advice)


def _are(count: int) -> str:
    return "1 turn is" if count == 1 else f"{count} turns are"


def _turns(count: int) -> str:
    return f"{count} turn waits" if count == 1 else f"{count} turns wait"


def _seconds(age: float) -> str:
    if age < 120:
        return f"{age:.0f} seconds"
    return f"{age / 60:.0f} minutes" if age < 7200 else f"{age / 3600:.0f} hours"
