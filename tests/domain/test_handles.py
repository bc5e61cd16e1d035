"""Handles: what is accepted as a name of a conversation, and that no two places share one."""

import string

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from legato.domain.handles import MAX_NAME, Address, ById, External, Slug, parse_external, parse_name
from legato.domain.ids import ConversationId
from legato.errors import BadInput, NotFound

LETTERS = string.ascii_letters + string.digits
slugs = st.builds(str.__add__, st.sampled_from(LETTERS), st.text(LETTERS + "._:@+-", max_size=254))
printable = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=MAX_NAME)

INVISIBLE = {
    "empty": "",
    "too long": "n" * 256,
    "a megabyte": "n" * 1_000_000,
    "NUL": "a\x00b",
    "only NUL": "\x00",
    "newline": "a\nb",
    "newline at the end": "name\n",
    "tab": "a\tb",
    "escape": "\x1b[31mred",
    "delete": "a\x7f",
    "half a surrogate pair": "a\ud800",
    "the other half": "\udfff",
}


@settings(max_examples=200, deadline=None)
@given(slugs)
@example("my-project")
@example("a" * 255)
@example("0")
@example("resp_1")
@example("user@host:8080/x".replace("/", "+"))
@example("conv")
def test_a_slug_of_plain_letters_may_be_made(name: str) -> None:
    if not name.startswith("conv_"):
        handle = parse_name(name)
        assert handle == Slug(name)
        assert handle.creatable


@pytest.mark.parametrize(
    "name",
    ["-a", ".hidden", "_x", "@me", "my project", "a/b", "../x", "a'; drop table turns; --", "naïve", "東京", "💡"],
)
def test_a_name_of_other_letters_is_found_and_never_made(name: str) -> None:
    """An imported conversation keeps its name, whatever its letters; a new one cannot have it."""
    handle = parse_name(name)
    assert handle == Slug(name)
    assert not handle.creatable


def test_a_slug_that_is_longer_than_a_name_may_be_cannot_be_made() -> None:
    assert not Slug("a" * 256).creatable
    assert not Slug("abc\n").creatable
    assert not Slug("").creatable


@settings(max_examples=200, deadline=None)
@given(printable)
@example("x" * 255)
@example("\u202e\u05d0")
@example("agent:main:telegram:dm:42")
def test_anything_visible_is_an_external_name(name: str) -> None:
    """What another system calls its session is taken as it is, and may be made on first use."""
    if not name.startswith("conv_"):
        handle = parse_external(name, param="X-Hermes-Session-Id")
        assert handle == External(name)
        assert handle.creatable


@pytest.mark.parametrize("name", INVISIBLE.values(), ids=INVISIBLE.keys())
def test_what_nobody_can_see_or_is_too_long_is_no_name(name: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_name(name, param="conversation")
    assert refused.value.param == "conversation"
    with pytest.raises(BadInput) as refused:
        parse_external(name, param="X-Hermes-Session-Id")
    assert refused.value.param == "X-Hermes-Session-Id"
    assert "X-Hermes-Session-Id" in refused.value.message


def test_the_control_characters_after_ascii_are_no_name_either() -> None:
    """U+0080 to U+009F are control characters as those before the space are: nobody can see them."""
    for name in ("a\x85b", "a\x9cb", "\x80"):
        with pytest.raises(BadInput):
            parse_external(name, param="X-Hermes-Session-Id")
        with pytest.raises(BadInput):
            parse_name(name)


@pytest.mark.parametrize("name", ["conv_" + "0f" * 16, "conv_", "conv_unknown", "conv_../../etc", "conv_'--"])
def test_what_begins_like_an_id_is_an_id_and_nothing_else(name: str) -> None:
    """Such a name is found or unknown, and never made."""
    by_id = ById(ConversationId(name))
    assert parse_name(name) == by_id
    assert parse_external(name, param="X-Legato-Conversation") == by_id
    assert not hasattr(by_id, "creatable")


@pytest.mark.parametrize("name", ["conv_\x00", "conv_a\x00b", "conv_\ud800"], ids=ascii)
def test_what_begins_like_an_id_and_no_database_can_hold_is_refused_at_the_door(name: str) -> None:
    """A request that names such a conversation is wrong or names an unknown one; it is not a failure of the store."""
    with pytest.raises((BadInput, NotFound)):
        parse_name(name)
    with pytest.raises((BadInput, NotFound)):
        parse_external(name, param="X-Legato-Conversation")


@pytest.mark.parametrize("name", ["CONV_1", "conv-1", " conv_1", "xconv_1"])
def test_what_only_resembles_an_id_is_a_name(name: str) -> None:
    assert parse_name(name) == Slug(name)
    assert parse_external(name, param="p") == External(name)


# -- addresses

ODD = ("", ":", "a", "a:b", '"', '","', "\\", "[", "]", ",", "\x00", "\n", "א\u202e", "🧵")
places = st.sampled_from(ODD) | st.text(max_size=12)
addresses = st.builds(Address, places, places, places, places)


@settings(max_examples=200, deadline=None)
@given(addresses)
def test_an_address_is_read_back_from_its_value(address: Address) -> None:
    """The value has exactly one reading, so two addresses never share one."""
    assert Address.parse(address.value) == address


@settings(max_examples=200, deadline=None)
@given(addresses, addresses)
@example(Address("telegram", "a:b", "c"), Address("telegram", "a", "b:c"))
@example(Address("x", 'a","b', "c"), Address("x", "a", 'b","c'))
@example(Address("x", "a", "b", ""), Address("x", "a", "", "b"))
def test_two_addresses_never_collide(one: Address, other: Address) -> None:
    assert (one.value == other.value) == (one == other)


def test_an_address_without_a_thread_is_the_one_with_an_empty_thread() -> None:
    assert Address("sms", "me", "you").value == Address("sms", "me", "you", "").value


@pytest.mark.parametrize("value", ["[]", '["a","b","c"]', '["a","b","c","d","e"]', '["a","b","c",1]', '"a:b:c:d"'])
def test_what_is_no_address_is_not_read_as_one(value: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        Address.parse(value)


def test_every_kind_of_name_has_a_scheme_of_its_own() -> None:
    """The same text as a slug and as an external id are two names."""
    schemes = [kind.scheme for kind in (Slug, External, Address)]
    assert schemes == ["slug", "external", "address"]
