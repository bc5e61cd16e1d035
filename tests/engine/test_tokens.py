"""Counts of tokens: a long text is counted in slices, and comes to what it is."""

from legato.engine import tokens


def test_a_text_that_is_longer_than_a_slice_has_the_tokens_of_its_parts() -> None:
    """A slice may fall into a word, which costs a token or two."""
    word = "conversation "
    text = word * (3 * tokens.SLICE // len(word) + 1)
    assert len(text) > 3 * tokens.SLICE
    assert 0 <= tokens.count(text) - tokens.count(word.strip()) * (len(text) // len(word)) <= 12
