"""The rules of the design, each removed once, to see its test go red.

    python tests/rules.py               every removal
    python tests/rules.py --only 7 12   some of them
    python tests/rules.py --list        what there is, with its numbers
    python tests/rules.py --jobs 2      two at a time

A row takes a rule of DESIGN §5 out of a copy of `src` (every guard of it, where there are several) and runs the named
tests on the copy. A row is good when each of its tests fails there, by an assertion and not by an error of setup. The
exit code is 1 when one stays green, when a text to be replaced is not there exactly once, or when a test is red
without any removal. `tests/test_rules.py` keeps the table fresh in `make test`; this takes minutes and runs alone.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from removals import REMOVALS, Removal

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
TIME_LIMIT = 600.0


class Result(NamedTuple):
    removal: Removal
    verdict: str
    detail: str
    seconds: float


def mutated(removal: Removal, copy: Path) -> list[str]:
    """Take a rule out of a copy of the source; returns what is wrong with the row."""
    wrong = []
    for change in removal.changes:
        path = copy / "legato" / change.file
        text = path.read_text("utf-8")
        if text.count(change.old) != 1:
            wrong.append(f"{change.file} holds {change.old!r} {text.count(change.old)} times")
        path.write_text(text.replace(change.old, change.new), "utf-8")
    return wrong


def outcomes(source: Path, tests: Iterable[str]) -> dict[str, str]:
    """Run tests on a source tree: passed, failed, or error (also: not found, or out of time)."""
    wanted = list(dict.fromkeys(tests))
    with tempfile.TemporaryDirectory(prefix="lgr") as folder:
        report = Path(folder) / "report.xml"
        environ = {
            **os.environ,
            "PYTHONPATH": str(source),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": folder,  # what fails here must not be tried again elsewhere
        }
        command = [sys.executable, __file__, "--inside", str(source), str(report), *wanted]
        try:
            done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=TIME_LIMIT)
        except subprocess.TimeoutExpired:
            return dict.fromkeys(wanted, "out of time")
        if not report.exists() or done.returncode not in (0, 1):
            return dict.fromkeys(wanted, f"not run: {(done.stderr or done.stdout).strip()[-300:]}")
        found: dict[str, set[str]] = {}
        for case in ElementTree.parse(report).iter("testcase"):  # twice when leaving fails, too
            path = str(case.get("classname")).replace(".", "/") + ".py"
            found.setdefault(f"{path}::{case.get('name')}", set()).add(_outcome(case))
    return {test: _worst(found.get(test, {"not found"})) for test in wanted}


def _outcome(case: ElementTree.Element) -> str:
    kinds = [kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None]
    return kinds[0] if kinds else "passed"


def _worst(seen: set[str]) -> str:
    """A failure is what counts, whatever else went wrong on the way out."""
    return "failed" if "failure" in seen else " and ".join(sorted(seen))


def inside(source: str, report: str, tests: Sequence[str]) -> int:
    """The child: be sure to test the copy, then test."""
    import pytest  # noqa: PLC0415

    import legato  # noqa: PLC0415 - only here, where PYTHONPATH says which one

    if not Path(legato.__file__).is_relative_to(source):
        sys.stderr.write(f"{legato.__file__} is not the copy in {source}\n")
        return 1
    return int(pytest.main(["-q", "-p", "no:cacheprovider", "--tb=no", f"--junitxml={report}", *tests]))


def copied(source: Path, copy: Path) -> None:
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))


def tried(removal: Removal, source: Path) -> Result:
    """Take one rule out of a copy of the source and see."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lgr") as folder:
        copy = Path(folder) / "src"
        copied(source, copy)
        if wrong := mutated(removal, copy):
            return Result(removal, "BROKEN", "; ".join(wrong), time.monotonic() - begun)
        seen = outcomes(copy, removal.test_ids)
    green = [f"{test}: {outcome}" for test, outcome in seen.items() if outcome != "failed"]
    return Result(removal, "GREEN" if green else "red", "\n      ".join(green), time.monotonic() - begun)


def main() -> int:
    parser = argparse.ArgumentParser(description="Remove each rule of the design once and see its test go red.")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="only these rows")
    parser.add_argument("--list", action="store_true", help="show the rows")
    parser.add_argument("--jobs", type=int, default=1, help="how many rows at a time")
    options = parser.parse_args()
    rows = [(n, r) for n, r in enumerate(REMOVALS, 1) if not options.only or n in options.only]
    if options.list:
        for n, removal in rows:
            _say(f"{n:3}  {removal.rule}: {removal.what}")
        return 0
    with tempfile.TemporaryDirectory(prefix="lgr") as folder:  # one source for all rows, whoever edits meanwhile
        source = Path(folder) / "src"
        copied(SOURCE, source)
        return run(rows, source, options.jobs)


def run(rows: Sequence[tuple[int, Removal]], source: Path, jobs: int) -> int:
    """Every test green with its rules in place, every row red without its rule."""
    sound = outcomes(source, [test for _, removal in rows for test in removal.test_ids])
    red_before = [f"{test}: {outcome}" for test, outcome in sound.items() if outcome != "passed"]
    for line in red_before[:20]:
        _say(f"Not green with every rule in place: {line}")
    bad = 0
    with ThreadPoolExecutor(jobs) as pool:
        results = pool.map(tried, [removal for _, removal in rows], [source] * len(rows))
        for (n, _), result in zip(rows, results, strict=True):
            bad += result.verdict != "red"
            _say(f"{n:3}  {result.verdict:6} {result.seconds:5.1f}s  {result.removal.rule}: {result.removal.what}")
            if result.detail:
                _say(f"      {result.detail}")
    _say(f"{len(rows) - bad} of {len(rows)} removals were noticed by every test named for them.")
    _say(f"{len(sound) - len(red_before)} of {len(sound)} tests were green with every rule in place.")
    return 1 if bad or red_before else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        sys.exit(inside(sys.argv[2], sys.argv[3], sys.argv[4:]))
    sys.exit(main())
