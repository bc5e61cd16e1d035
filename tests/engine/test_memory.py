"""What must be kept of a long talk is kept, even where summaries forget everything (`bench/memory.py`)."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "bench" / "memory.py"


async def test_pins_the_latest_task_and_what_was_done_outlive_every_compaction(tmp_path: Path) -> None:
    """Forty things are planted; the summaries keep none of them."""
    spec = importlib.util.spec_from_file_location("memory", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    memory = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(memory)
    report = await memory.measure(tmp_path, turns=400)
    assert sum(planted for _, planted in report.kept.values()) >= 40
    assert {kind: report.kept[kind] for kind in ("pins", "done by tools", "latest task")} == {
        "pins": (10, 10),
        "done by tools": (15, 15),
        "latest task": (1, 1),
    }
    assert report.compactions >= 5
    assert report.largest <= memory.WINDOW
    assert report.sent < report.truncated < report.everything
