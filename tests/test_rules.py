"""The table of `removals.py` is fresh: what it would take out is there, and so are the tests that would notice."""

import subprocess
import sys

import pytest

from removals import REMOVALS, RULES, Removal
from rules import ROOT, SOURCE


@pytest.mark.parametrize("removal", REMOVALS, ids=lambda removal: removal.what)
def test_what_would_be_taken_out_is_there_once(removal: Removal) -> None:
    """Each text stands in its file exactly once, and something else would take its place."""
    for change in removal.changes:
        text = (SOURCE / "legato" / change.file).read_text("utf-8")
        assert text.count(change.old) == 1, f"{change.file} holds {change.old!r} {text.count(change.old)} times"
        assert change.old != change.new


def test_every_rule_is_taken_out_at_least_once() -> None:
    """And nothing else is."""
    assert {removal.rule for removal in REMOVALS} == set(RULES)


def test_the_tests_that_would_notice_exist(request: pytest.FixtureRequest) -> None:
    """Each id is one that pytest knows: in this run, where it has collected them all, or else by asking it."""
    ids = sorted({test for removal in REMOVALS for test in removal.test_ids})
    here = {name for item in request.session.items for name in (item.nodeid, item.nodeid.partition("[")[0])}
    if {test.partition("::")[0] for test in ids} <= {name.partition("::")[0] for name in here}:
        assert [test for test in ids if test not in here] == []
        return
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *ids]
    known = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert known.returncode == 0, known.stdout[-2000:] + known.stderr[-2000:]
