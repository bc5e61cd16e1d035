"""Markdown in pieces: wherever it is cut, the rows are the same, and no text is lost."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from legato.cli.markdown import LIMIT, MarkdownStream
from legato.cli.paint import Paint, bare, short
from legato.cli.plain import plain

TEXT = """# Head

A paragraph with *stress*, **weight** and `code`
on two lines, <b>HTML</b> and [a link](https://example.org).

1. one
2. two
   goes on

   ```python
   def f(): return "x"
   ```
3. three

- a
  - b

| word | 東京 |
|------|------|
| one  | 二   |

> said
> so

~~~
code without an end
  indented \x1b[31m
"""


def rows_of(*pieces: str, width: int = 60) -> list[str]:
    paint = Paint()
    paint.width = width
    stream = MarkdownStream(paint)
    rows = [row for piece in pieces for row in stream.feed(piece)]
    return [bare(row) for row in rows + stream.close()]


@settings(deadline=None)
@given(st.lists(st.integers(0, len(TEXT)), max_size=30))
def test_where_a_text_is_cut_does_not_matter(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(TEXT)]
    pieces = [TEXT[a:b] for a, b in pairwise(places)]
    assert rows_of(*pieces) == rows_of(TEXT)


def test_every_word_of_a_text_is_shown() -> None:
    """HTML and a reference are words too."""
    shown = "\n".join(rows_of(TEXT + "~~~\n\n[ref]: https://example.org\n\n<div>block</div>\n"))
    for word in (
        "Head",
        "stress,",
        "<b>HTML</b>",
        "example.org",
        "three",
        "東京",
        "二",
        "said",
        "ref",
        "<div>block</div>",
    ):
        assert word in shown, word
    assert "goes on" in shown
    assert 'def f(): return "x"' in shown


@pytest.mark.parametrize(
    ("line", "count"),
    [("word{} ", 20_000), ("line {}\n", 5_000), ("- item {}\n", 5_000), ("{}. item\n", 5_000), ("漢字{} ", 5_000)],
)
def test_what_grows_without_end_is_let_go_piece_by_piece(line: str, count: int) -> None:
    """Nothing is lost, and what is still open stays small."""
    paint = Paint()
    stream = MarkdownStream(paint)
    rows: list[str] = []
    for n in range(1, count + 1):
        rows += stream.feed(line.format(n))
        assert stream._size + stream._open_size < 3 * LIMIT
    rows += stream.close()
    numbers = "".join(" " + bare(row) + " " for row in rows)
    for n in (1, count // 2, count):
        assert f"{n}" in numbers
    words = [word for word in numbers.split() if any(c.isdigit() for c in word)]
    assert len(words) == count


def test_a_table_without_end_keeps_its_head() -> None:
    rows = rows_of("| n | x |\n|---|---|\n", *(f"| {n} | y |\n" for n in range(2_000)))
    assert [row.split()[0] for row in rows if row.split()[-1:] == ["y"]] == [str(n) for n in range(2_000)]
    assert len([row for row in rows if row.split() == ["n", "x"]]) > 1


@given(st.text(st.characters(exclude_categories=())))
def test_no_text_moves_the_cursor(text: str) -> None:
    """Whatever is written, only newlines and what can be seen remain."""
    made = plain(text)
    assert not [c for c in made if (ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0]
    made.encode()


@given(st.text(max_size=200), st.integers(5, 40))
def test_what_is_shortened_fits(text: str, width: int) -> None:
    made = short(text, width)
    assert "\n" not in made
    assert cell_len(made) <= width
