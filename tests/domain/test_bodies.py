"""Entries: what is written to the log is what is read from it, whatever the text."""

from typing import get_args

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from legato.domain.entries import (
    AnyBody,
    Compaction,
    ControlBody,
    Expand,
    File,
    Hide,
    Image,
    Message,
    Note,
    Pin,
    Reasoning,
    Remove,
    Rewind,
    Role,
    Setup,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    draft,
    kind_of,
    span_of,
)
from legato.domain.events import Opened
from legato.domain.ids import EntryId

ODD = (
    "",
    "\x00",
    "a\x00b\x7f\x1b[0m",
    "👩‍👩‍👧‍👦🏳️‍🌈",
    "שלום \u202eabc\u202c عالم",
    "𝒳𠮷🀄\U0010ffff",
    "e\u0301\u200b\ufeff\u2028\u2029",
    '"\\/\b\f\n\r\t</script>{}[]:,',
)
decoder = msgspec.json.Decoder(AnyBody)

texts = st.sampled_from(ODD) | st.text(max_size=40)
maybe = st.none() | texts
positions = st.integers(0, 2**40)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
parts = st.lists(
    st.builds(Text, texts) | st.builds(Image, maybe, maybe, maybe, maybe) | st.builds(File, maybe, maybe, maybe, maybe),
    max_size=3,
).map(tuple)
tools = st.lists(
    st.builds(Tool, texts, texts, st.dictionaries(texts, json_values, max_size=3), st.booleans(), custom=st.booleans()),
    max_size=2,
).map(tuple)
BODIES: dict[type, st.SearchStrategy[AnyBody]] = {
    Message: st.builds(Message, st.sampled_from(get_args(Role)), parts, maybe, st.booleans()),
    Reasoning: st.builds(Reasoning, texts, maybe, st.booleans()),
    ToolCall: st.builds(ToolCall, texts, texts, texts, st.booleans(), st.booleans()),
    ToolResult: st.builds(ToolResult, texts, texts, st.booleans(), st.booleans(), custom=st.booleans()),
    Note: st.builds(Note, texts, texts),
    Setup: st.builds(Setup, texts, texts, texts, tools),
    Compaction: st.builds(Compaction, positions, texts, texts, texts),
    Expand: st.builds(Expand, positions),
    Rewind: st.builds(Rewind, positions),
    Pin: st.builds(Pin, positions),
    Hide: st.builds(Hide, positions, positions, texts),
    Remove: st.builds(Remove, positions),
}


@pytest.mark.parametrize("kind", BODIES)
def test_every_body_is_read_as_it_was_written(kind: type) -> None:
    @settings(max_examples=50, deadline=None)
    @given(BODIES[kind])
    def check(body: AnyBody) -> None:
        assert decoder.decode(msgspec.json.encode(body)) == body

    check()


@pytest.mark.parametrize("text", ODD, ids=ascii)
def test_odd_text_survives_in_every_place_that_holds_text(text: str) -> None:
    for body in (
        Message("user", (Text(text), File(name=text)), sender=text),
        Reasoning(text, encrypted=text),
        ToolCall(text, text, text),
        ToolResult(text, text),
        Note(text, text),
        Setup(text, text, text, (Tool(text, text, {text: [text]}),)),
        Compaction(1, text, text, text),
        Hide(1, 2, text),
    ):
        written = msgspec.json.encode(body)
        assert decoder.decode(written) == body
        assert b"\x00" not in written  # PostgreSQL cannot hold it


def test_the_kinds_here_are_all_there_are() -> None:
    assert set(BODIES) == set(get_args(AnyBody))


@settings(max_examples=200, deadline=None)
@given(st.one_of(*BODIES.values()))
@example(Message("user", ()))
def test_the_kind_of_a_body_is_the_word_in_its_json(body: AnyBody) -> None:
    assert msgspec.json.decode(msgspec.json.encode(body))["kind"] == kind_of(body)


def test_kinds_are_the_words_of_the_log() -> None:
    assert {body.__name__: body.__struct_config__.tag for body in get_args(AnyBody)} == {
        "Message": "message",
        "Reasoning": "reasoning",
        "ToolCall": "tool_call",
        "ToolResult": "tool_result",
        "Note": "note",
        "Setup": "setup",
        "Compaction": "compaction",
        "Expand": "expand",
        "Rewind": "rewind",
        "Pin": "pin",
        "Hide": "hide",
        "Remove": "remove",
    }


@settings(max_examples=200, deadline=None)
@given(positions, positions)
def test_a_control_points_where_it_says(first: int, last: int) -> None:
    for body in (Compaction(last, "short"), Expand(last), Rewind(last), Pin(last), Remove(last)):
        assert span_of(body) == (None, last)
    assert span_of(Hide(first, last)) == (first, last)


@settings(max_examples=100, deadline=None)
@given(st.one_of(*(made for kind, made in BODIES.items() if kind not in get_args(ControlBody))))
def test_only_controls_point_anywhere(body: AnyBody) -> None:
    assert span_of(body) == (None, None)


@pytest.mark.parametrize(
    "written",
    [
        b'{"kind": "song", "text": "la"}',
        b'{"text": "no kind"}',
        b'{"kind": "message", "role": "king", "parts": []}',
        b'{"kind": "message", "role": "user", "parts": [{"type": "smell"}]}',
        b'{"kind": "rewind"}',
        b'{"kind": "rewind", "to": "1"}',
        b"[]",
        b"null",
    ],
)
def test_what_is_no_body_is_refused(written: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        decoder.decode(written)


@settings(max_examples=100, deadline=None)
@given(st.lists(texts, max_size=4))
def test_the_text_of_a_message_is_that_of_its_text_parts(pieces: list[str]) -> None:
    mixed = tuple(part for piece in pieces for part in (Image(url="u"), Text(piece), File(name="f")))
    assert Message("user", mixed).text == "".join(pieces)


def test_a_draft_has_an_id_of_its_own_that_says_what_it_is() -> None:
    prefixes: dict[AnyBody, str] = {
        Message("user", ()): "msg_",
        Reasoning(): "rs_",
        ToolCall("c", "t", "{}"): "fc_",
        ToolResult("c", ""): "fco_",
        ToolCall("c", "t", "{}", custom=True): "ctc_",
        ToolResult("c", "", custom=True): "ctco_",
        Compaction(1, ""): "cmp_",
        Note(""): "ent_",
        Setup("a", "m"): "ent_",
        Rewind(0): "ent_",
    }
    drafts = [(draft(body), prefix) for body, prefix in prefixes.items() for _ in range(3)]
    assert all(made.id.startswith(prefix) and len(made.id) == len(prefix) + 32 for made, prefix in drafts)
    assert len({made.id for made, _ in drafts}) == len(drafts)


def test_a_call_from_before_there_were_custom_ones_is_of_a_function() -> None:
    """And one that is of a function now is written as it was then."""
    call, result = ToolCall("c", "t", "{}", client=True), ToolResult("c", "x")
    written = [
        b'{"kind":"tool_call","call_id":"c","name":"t","arguments":"{}","client":true}',
        b'{"kind":"tool_result","call_id":"c","output":"x"}',
    ]
    assert [decoder.decode(body) for body in written] == [call, result]
    assert [msgspec.json.encode(body) for body in (call, result)] == written
    assert not msgspec.json.decode(b'["o",0,"fc_1","tool_call","c","t",true]', type=Opened).custom


def test_a_draft_keeps_the_id_it_is_given() -> None:
    assert draft(Note("n"), id="ent_mine").id == EntryId("ent_mine")
