"""Grams: a prefix-free code of every character, and a truth that does not mind width, case or spacing."""

import re
import unicodedata
from itertools import chain, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.domain.grams import _code, contains, grams, normalise, query_grams, snippet, tag

ALNUM = re.compile(r"[a-z0-9]+\Z")
MARKS = "\u0301\u0308\u0323\u0345\u3099\u1161\u11a8"
texts = st.text(
    st.sampled_from("aBß Éé日本ｶ한ไا🙂ﬁẞİǅ ½´\t\u3000\u200d" + MARKS) | st.characters(codec="utf-8"), max_size=30
)


def code(text: str) -> str:
    """The code of a text as it stands."""
    return "".join(_code(char) for char in text)


def found_by_index(text: str, query: str) -> bool:
    """What an index of grams alone would say."""
    indexed = grams(text)
    wanted, prefix = query_grams(query)
    return indexed.issuperset(wanted) and (prefix is None or any(gram.startswith(prefix) for gram in indexed))


# -- the code


def test_no_code_of_a_character_is_the_beginning_of_another() -> None:
    """Every character of the first plane, and of the others every seventh: sorted, a prefix stands before its heir."""
    points = chain(range(0xD800), range(0xE000, 0x10000), range(0x10000, 0x110000, 7), [0x10FFFF])
    codes = sorted(code(chr(point)) for point in points)
    assert all(not after.startswith(before) for before, after in pairwise(codes))


@settings(max_examples=200, deadline=None)
@given(texts, texts)
def test_a_code_begins_another_exactly_when_the_text_does(one: str, other: str) -> None:
    for text, start in ((one, other), (one + other, one), (one + other, other)):
        assert code(text).startswith(code(start)) == text.startswith(start)


@settings(max_examples=200, deadline=None)
@given(texts)
def test_nothing_in_a_code_can_be_query_syntax(text: str) -> None:
    for gram in grams(text) | grams("'\"*:&|!()<->\\ AND NEAR" + text):
        assert ALNUM.match(gram)


@settings(max_examples=200, deadline=None)
@given(texts, texts)
def test_a_tag_is_never_a_gram_and_never_that_of_another_value(value: str, text: str) -> None:
    indexed = grams(text) | grams(value) | grams(tag("y", value))
    assert {tag("y", value), tag("z", value)}.isdisjoint(indexed)
    assert not any(gram.startswith(("y", "z")) for gram in indexed)
    assert (tag("y", value) == tag("y", text)) == (value == text)
    assert tag("y", value) != tag("z", value)


# -- the truth


@settings(max_examples=200, deadline=None)
@given(texts)
def test_a_text_contains_itself_and_nothing(text: str) -> None:
    assert contains(text, text)
    assert contains(text, "")


@settings(max_examples=200, deadline=None)
@given(texts)
def test_normalising_twice_changes_nothing_more(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


@settings(max_examples=200, deadline=None)
@given(texts, st.integers(0, 30), st.integers(0, 30))
def test_every_piece_of_a_normalised_text_is_contained(text: str, start: int, length: int) -> None:
    plain = normalise(text)
    piece = plain[start : start + length]
    assert normalise(piece) == piece.strip()
    assert contains(text, piece)


@settings(max_examples=200, deadline=None)
@given(texts, texts, texts)
def test_what_a_part_contains_the_whole_contains(before: str, text: str, after: str) -> None:
    """With a space around it, so that no mark of a neighbour joins it."""
    assert contains(f"{before} {text} {after}", text)


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Hello World", "hello world"),
        ("hello world", "LO WO"),
        ("ＡＢＣ１２３", "abc123"),
        ("abc", "ＡＢＣ"),
        ("ｶﾀｶﾅ", "カタカナ"),
        ("Straße", "STRASSE"),
        ("ΣΊΣΥΦΟΣ", "σίσυφος"),
        ("caf\u00e9", "cafe\u0301"),
        ("\u1112\u1161\u11ab\uae00", "한글"),
        ("one\n\ttwo", "one two"),
        ("one two", "one\u3000\u00a0two"),
        ("the ﬁle", "file"),
    ],
)
def test_what_looks_the_same_is_the_same(text: str, query: str) -> None:
    assert contains(text, query)


@pytest.mark.parametrize(
    ("text", "query"), [("resume", "résumé"), ("abc", "abd"), ("ab", "abc"), ("one two", "onetwo"), ("한글", "하")]
)
def test_what_is_different_is_different(text: str, query: str) -> None:
    assert not contains(text, query)


# -- the index and the truth


@settings(max_examples=200, deadline=None)
@given(texts, texts, st.integers(0, 30), st.integers(1, 30))
def test_the_index_finds_everything_that_is_contained(text: str, other: str, start: int, length: int) -> None:
    """It may name more than there is, and never less. (A search for nothing is refused.)"""
    for query in (other, text[start : start + length], normalise(text)[start : start + length], text.swapcase()):
        assert found_by_index(text, query) or not contains(text, query) or not normalise(query)


@settings(max_examples=200, deadline=None)
@given(st.text("ab日.", max_size=12), st.text("ab日.", min_size=1, max_size=3))
def test_for_up_to_three_characters_the_index_is_exact(text: str, query: str) -> None:
    assert found_by_index(text, query) == contains(text, query)


@settings(max_examples=200, deadline=None)
@given(texts)
def test_every_gram_holds_one_to_three_characters_of_the_text(text: str) -> None:
    plain = normalise(text)
    assert grams(text) == {code(plain[i : i + 3]) for i in range(len(plain))}


def test_width_and_marks_are_those_of_unicode() -> None:
    """A guard on the tables: the examples above are what NFKC says."""
    assert unicodedata.normalize("NFKC", "ﬁＡ") == "fiA"


@pytest.mark.parametrize(
    ("text", "query", "expected"),
    [
        ("Hello there", "THERE", "Hello there"),
        ("a\n\nb   c", "b C", "a b c"),
        ("x" * 100 + " the needle " + "y" * 100, "needle", "…" + "x" * 55 + " the needle " + "y" * 59 + "…"),
        ("ｆｕｌｌ width", "full", "full width"),
        ("東京都の天気", "京都", "東京都の天気"),
    ],
)
def test_a_snippet_is_the_place_that_was_found_in_one_line(text: str, query: str, expected: str) -> None:
    assert snippet(text, query) == expected
    assert contains(snippet(text, query), query)
