"""Long answers as messages that a platform takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.domain.channels import split


def utf16(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def test_what_fits_is_one_message() -> None:
    assert split("hello\n\nworld", 100) == ["hello\n\nworld"]
    assert split("", 100) == []


def test_it_is_cut_at_the_end_of_a_paragraph_a_line_a_sentence_or_a_word() -> None:
    assert split("one two\n\nthree four", 12) == ["one two", "three four"]
    assert split("one two\nthree four", 12) == ["one two", "three four"]
    assert split("One two. Three four.", 12) == ["One two.", "Three four."]
    assert split("alpha beta gamma", 12) == ["alpha beta", "gamma"]
    assert split("x" * 25, 10) == ["x" * 10, "x" * 10, "x" * 5]


def test_a_block_of_code_is_closed_and_opened_again() -> None:
    code = "```python\n" + "\n".join(f"line {n}" for n in range(30)) + "\n```"
    parts = split(f"Look:\n\n{code}\n\nDone.", 120)
    assert len(parts) > 2
    for part in parts:
        assert part.count("```") % 2 == 0
        assert len(part) <= 120
    inside = [line for part in parts for line in part.splitlines() if line.startswith("line")]
    assert inside == [f"line {n}" for n in range(30)]
    assert parts[1].startswith("```python\n")


@given(st.text(alphabet="ab .\n`#~é漢😀", max_size=600), st.integers(40, 200))
def test_no_message_is_too_long_and_no_word_is_lost(text: str, limit: int) -> None:
    parts = split(text, limit, utf16)
    assert all(utf16(part) <= limit for part in parts)
    kept = [char for part in parts for char in part if char in "abé漢😀"]
    assert [char for char in text if char in "abé漢😀"] == kept or "```" in text or "~~~" in text


@pytest.mark.parametrize("limit", [50, 100, 4096])
def test_much_code_is_split_in_little_time(limit: int) -> None:
    text = "```\n" + "some line of code\n" * 5_000 + "```"
    assert sum(part.count("some line of code") for part in split(text, limit)) == 5_000
