"""What the model was sent, seen in the answer to `say what` (see `upstream`): the one view that both servers have."""

import re
from collections import Counter
from typing import NamedTuple

from client import Answer

REPORT = re.compile(rb'"(\d+) said,([^"\\]*)')


class Heard(NamedTuple):
    said: int  # words of answers
    marks: "Counter[str]"

    def __str__(self) -> str:
        marks = ", ".join(f"{mark} × {count}" if count > 1 else mark for mark, count in self.marks.items())
        return f"the next prompt held {marks or 'no mark'}"


def heard(answer: Answer) -> Heard:
    report = REPORT.search(answer.data)
    assert report is not None, bytes(answer.data)
    return Heard(int(report[1]), Counter(report[2].decode().split()))
