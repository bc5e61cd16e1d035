"""Long answers as messages that a platform takes."""

from collections.abc import Callable

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


pieces = st.sampled_from(
    ["a", "b. ", "é漢", "😀", "`", "~", " ", "\n", "```", "\n```\n", "\n```python\n", "~~~~", "x" * 70, "😀" * 40]
)
texts = st.lists(pieces, max_size=120).map("".join)


@given(texts, st.integers(40, 200), st.sampled_from([len, utf16]))
def test_no_message_is_too_long_and_no_word_is_lost(text: str, limit: int, size: Callable[[str], int]) -> None:
    """Whatever the text is: all of it but fences and blanks is there in its order, in a few messages of which none is
    blank."""
    parts = split(text, limit, size)
    assert all(size(part) <= limit and part.strip() for part in parts)
    assert len(parts) <= 1 + 32 * size(text) // limit
    shown = iter("".join(parts))
    assert all(letter in shown for letter in text if letter not in "`~ \n")
    if "``" not in text and "~~" not in text:
        assert "".join("".join(parts).split()) == "".join(text.split())


@pytest.mark.parametrize(
    "text",
    [
        "```" + "x" * 6000,
        "```" + "😀" * 3000,
        "```json " + '{"a": 1}' * 800 + "```",
        "```json " + '{"a": 1}' * 800 + "\n```",
        "```\n" + "x" * 6000 + "\n```",
        "~~~" + "x " * 3000 + "~~~",
        "`" * 6000,
    ],
)
def test_one_long_line_with_a_fence_is_two_messages(text: str) -> None:
    parts = split(text, 4000, utf16)
    assert len(parts) == 2
    assert all(utf16(part) <= 4000 for part in parts)


def test_a_line_that_ends_the_code_it_begins_leaves_no_block_open() -> None:
    parts = split("```one line of code```\n\n" + "words " * 30, 100)
    assert not any("```" in part for part in parts[1:])


def test_a_block_that_ends_where_it_is_cut_is_not_opened_again() -> None:
    code = "\n".join(["some code"] * 8)
    assert split(f"```\n{code}\n```\n\nDone.", 93) == [f"```\n{code}\n```", "Done."]


def test_what_is_blank_is_no_message() -> None:
    assert split(" \n ", 100) == []
    assert [part.strip() for part in split("a" + " " * 500 + "b", 100)] == ["a", "b"]


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_a_limit_that_nothing_fits_in_is_no_endless_task(limit: int) -> None:
    assert "".join(split("😀" * 9, limit, utf16)) == "😀" * 9
    assert split("```python\n" + "😀 " * 9 + "\n```", limit, utf16)


@pytest.mark.parametrize("limit", [50, 100, 4096])
def test_much_code_is_split_in_little_time(limit: int) -> None:
    text = "```\n" + "some line of code\n" * 5_000 + "```"
    assert sum(part.count("some line of code") for part in split(text, limit)) == 5_000
