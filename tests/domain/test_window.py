"""The window against a naive fold: the log replayed one entry at a time, with a snapshot of every state."""

from itertools import pairwise
from random import Random
from typing import NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from legato.domain.window import Context, Control, ControlKind, Span, context, transcript

# -- the naive fold


class State(NamedTuple):
    """What holds after some entry: which positions were not rewound, and which controls (and setups) still speak."""

    kept: frozenset[int] = frozenset()
    speaking: tuple[Control, ...] = ()

    @property
    def shown(self) -> frozenset[int]:
        return self.kept - {control.ref for control in self.speaking if control.kind == "remove"}


def replay(head: int, controls: list[Control]) -> State:
    """Read the log entry by entry; a rewind puts back the state after the entry it goes to."""
    at = {control.seq: control for control in controls}
    states = [State()]
    for seq in range(1, head + 1):
        kept, speaking = states[-1]
        control = at.get(seq)
        if control is not None and control.kind == "rewind":
            states.append(states[control.ref])
            continue
        if control is not None and control.kind == "expand":
            speaking = tuple(c for c in speaking if c.seq != control.ref or c.kind not in VOIDABLE)
        elif control is not None:
            speaking = (*speaking, control)
        states.append(State(kept | {seq}, speaking))
    return states[-1]


def folded_context(head: int, controls: list[Control]) -> tuple[int | None, int | None, list[int]]:
    """Setup, summary and positions, each position decided alone by going through every control that speaks."""
    state = replay(head, controls)
    shown, speaking = state.shown, state.speaking
    setup = summary = None
    upto = 0
    for control in speaking:
        if control.kind == "setup":
            setup = control.seq
        if control.kind == "compaction":
            summary, upto = control.seq, control.ref
    seen = []
    for position in sorted(shown):
        let_in = position > upto
        for control in speaking:
            if control.kind == "hide" and control.first <= position <= control.ref:
                let_in = False
            if (
                control.kind == "pin"
                and control.ref == position
                and (not control.first or control.seq > (summary or 0))
            ):
                let_in = True
        if let_in:
            seen.append(position)
    return setup, summary, seen


def positions(spans: tuple[Span, ...]) -> list[int]:
    return [position for first, last in spans for position in range(first, last + 1)]


# -- random logs

OFTEN: tuple[ControlKind | None, ...] = (None, None, None, "compaction", "expand", "pin")
KINDS: tuple[ControlKind | None, ...] = (*OFTEN, "setup", "compaction", "expand", "rewind", "pin", "hide", "remove")
VOIDABLE = ("compaction", "pin", "hide", "remove")


def control_at(seq: int, die: int, before: list[Control]) -> Control | None:
    """One entry, all of it from one roll: its kind, and where it points. Half of the references are to controls."""
    die, kind = divmod(die, len(KINDS))
    die, at_control = divmod(die, 2)
    other, die = divmod(die, 1000)
    ref = before[-1 - die % min(4, len(before))].seq if at_control and before else die % seq
    match KINDS[kind]:
        case None:
            return None
        case "setup":
            return Control(seq, "setup")
        case "hide":
            return Control(seq, "hide", ref, first=other % (ref + 1))
        case "pin":
            return Control(seq, "pin", ref, first=ref if other % 2 else 0)
        case other_kind:
            return Control(seq, other_kind, ref)


@st.composite
def logs(draw: st.DrawFn) -> tuple[int, list[Control]]:
    """A head, and every control of a log that may go on beyond it."""
    size = draw(st.integers(0, 24))
    dice = draw(st.lists(st.integers(0, 2**30), min_size=size, max_size=size))
    controls: list[Control] = []
    for seq, die in enumerate(dice, start=1):
        if control := control_at(seq, die, controls):
            controls.append(control)
    head = len(dice) if draw(st.booleans()) else draw(st.integers(0, len(dice)))
    return head, controls


@settings(max_examples=1600, deadline=None)
@given(logs())
@example((6, [Control(3, "compaction", 2), Control(4, "expand", 3), Control(5, "expand", 4)]))
@example((9, [Control(4, "rewind", 2), Control(7, "rewind", 3)]))
@example((9, [Control(4, "compaction", 3), Control(6, "expand", 4), Control(8, "rewind", 5)]))
@example((7, [Control(4, "hide", 3, 2), Control(5, "pin", 2), Control(6, "pin", 4)]))
def test_the_window_of_any_log_is_what_replaying_it_entry_by_entry_gives(log: tuple[int, list[Control]]) -> None:
    """Transcript and context equal the naive fold, and their spans are ascending, disjoint and within the log."""
    head, controls = log
    people, model = transcript(head, controls), context(head, controls)
    setup, summary, seen = folded_context(head, controls)

    assert positions(people) == sorted(replay(head, controls).shown)
    assert positions(model.spans) == seen
    assert (model.setup, model.summary) == (setup, summary)
    for spans in (people, model.spans):
        assert_well_formed(spans, head)


def assert_well_formed(spans: tuple[Span, ...], head: int) -> None:
    assert all(1 <= first <= last <= head for first, last in spans)
    assert all(before[1] < after[0] for before, after in pairwise(spans))


@settings(max_examples=200, deadline=None)
@given(logs(), st.randoms(use_true_random=False))
def test_the_order_in_which_controls_are_given_does_not_matter(log: tuple[int, list[Control]], dice: Random) -> None:
    head, controls = log
    shuffled = list(controls)
    dice.shuffle(shuffled)
    assert transcript(head, shuffled) == transcript(head, controls)
    assert context(head, shuffled) == context(head, controls)


@settings(max_examples=200, deadline=None)
@given(logs())
def test_what_comes_after_the_head_is_not_known(log: tuple[int, list[Control]]) -> None:
    """A fork at `head` sees the log as it was then, whatever was written later."""
    head, controls = log
    then = [control for control in controls if control.seq <= head]
    assert transcript(head, controls) == transcript(head, then)
    assert context(head, controls) == context(head, then)


@settings(max_examples=200, deadline=None)
@given(logs())
def test_a_rewind_shows_the_log_as_it_was_then(log: tuple[int, list[Control]]) -> None:
    """A rewind to any position, appended now, is indistinguishable from never having gone on."""
    head, controls = log
    known = [control for control in controls if control.seq <= head]
    for to in range(head + 1):
        undone = [*known, Control(head + 1, "rewind", to)]
        assert transcript(head + 1, undone) == transcript(to, known)
        assert context(head + 1, undone) == context(to, known)


# -- what the rules mean, one at a time


def test_an_empty_log_shows_nothing() -> None:
    assert transcript(0, []) == ()
    assert context(0, []) == Context(None, None, ())


def test_a_log_without_controls_is_shown_whole() -> None:
    assert transcript(7, []) == ((1, 7),)
    assert context(7, []) == Context(None, None, ((1, 7),))


def test_a_compaction_changes_what_the_model_sees_and_not_what_people_see() -> None:
    controls = [Control(1, "setup"), Control(6, "compaction", 4)]
    assert context(8, controls) == Context(setup=1, summary=6, spans=((5, 8),))
    assert transcript(8, controls) == ((1, 8),)


def test_the_newest_compaction_stands_for_the_past_even_when_it_reaches_less_far() -> None:
    controls = [Control(6, "compaction", 5), Control(8, "compaction", 2)]
    assert context(9, controls) == Context(None, summary=8, spans=((3, 9),))


def test_an_expand_brings_the_originals_back_also_after_later_turns() -> None:
    controls = [Control(6, "compaction", 4), Control(12, "expand", 6)]
    assert context(11, controls).spans == ((5, 11),)
    assert context(15, controls) == Context(None, None, ((1, 15),))


def test_an_expand_of_the_newest_compaction_gives_the_one_before_it_its_place_back() -> None:
    controls = [Control(4, "compaction", 2), Control(8, "compaction", 6), Control(9, "expand", 8)]
    assert context(9, controls) == Context(None, summary=4, spans=((3, 9),))


def test_an_undone_expand_expands_nothing() -> None:
    controls = [Control(6, "compaction", 4), Control(7, "expand", 6), Control(8, "rewind", 6)]
    assert context(9, controls) == Context(None, summary=6, spans=((5, 6), (9, 9)))


def test_an_expand_does_not_void_another_expand() -> None:
    """An expand voids one compaction, pin or hide; of anything else it says nothing."""
    controls = [Control(3, "compaction", 2), Control(4, "expand", 3), Control(5, "expand", 4)]
    assert context(5, controls) == Context(None, None, ((1, 5),))


def test_an_expand_does_not_void_a_setup() -> None:
    """An expand voids one compaction, pin or hide; the setup in force stays in force."""
    controls = [Control(1, "setup"), Control(4, "expand", 1)]
    assert context(5, controls) == Context(setup=1, summary=None, spans=((1, 5),))


def test_an_expand_does_not_void_a_rewind() -> None:
    controls = [Control(3, "rewind", 1), Control(4, "expand", 3)]
    assert transcript(5, controls) == ((1, 1), (4, 5))


def test_an_undone_compaction_stands_for_nothing() -> None:
    controls = [Control(6, "compaction", 4), Control(8, "rewind", 3)]
    assert context(9, controls) == Context(None, None, ((1, 3), (9, 9)))


def test_a_rewind_to_a_rewound_position_undoes_the_undo() -> None:
    controls = [Control(5, "rewind", 2), Control(8, "rewind", 4)]
    assert transcript(7, controls) == ((1, 2), (6, 7))
    assert transcript(9, controls) == ((1, 4), (9, 9))


def test_a_rewind_to_the_beginning_leaves_nothing() -> None:
    assert transcript(5, [Control(5, "rewind", 0)]) == ()
    assert context(5, [Control(1, "setup"), Control(5, "rewind", 0)]) == Context(None, None, ())


def test_a_fork_from_before_a_compaction_sees_the_originals() -> None:
    assert context(5, [Control(6, "compaction", 4)]) == Context(None, None, ((1, 5),))


def test_a_pinned_entry_stays_in_its_place_whatever_is_compacted() -> None:
    controls = [Control(4, "pin", 2), Control(8, "compaction", 6)]
    assert context(9, controls) == Context(None, summary=8, spans=((2, 2), (7, 9)))


def test_what_a_compaction_kept_is_kept_until_there_is_another() -> None:
    """And again when that one is undone."""
    first, kept, second = Control(5, "compaction", 4), Control(6, "pin", 3, first=3), Control(9, "compaction", 8)
    assert context(8, [first, kept]) == Context(None, summary=5, spans=((3, 3), (5, 8)), kept=(3,))
    assert context(9, [first, kept, second]) == Context(None, summary=9, spans=((9, 9),))
    assert context(10, [first, kept, second, Control(10, "expand", 9)]).spans == ((3, 3), (5, 10))


def test_of_pin_and_hide_the_newer_one_counts() -> None:
    hide, pin = Control(5, "hide", 4, first=2), Control(6, "pin", 3)
    assert context(7, [hide, pin]).spans == ((1, 1), (3, 3), (5, 7))
    hide, pin = Control(6, "hide", 4, first=2), Control(5, "pin", 3)
    assert context(7, [hide, pin]).spans == ((1, 1), (5, 7))


def test_a_pin_of_what_was_rewound_brings_nothing_back() -> None:
    assert context(6, [Control(4, "rewind", 1), Control(5, "pin", 3)]).spans == ((1, 1), (5, 6))


def test_a_removed_entry_is_seen_by_nobody_until_that_is_undone() -> None:
    pin, remove = Control(4, "pin", 2), Control(6, "remove", 2)
    assert transcript(7, [pin, remove]) == context(7, [pin, remove]).spans == ((1, 1), (3, 7))
    assert transcript(7, [remove, Control(7, "expand", 6)]) == ((1, 7),)
    assert transcript(7, [remove, Control(7, "rewind", 5)]) == ((1, 5),)


def test_a_hidden_compaction_still_stands_for_the_past() -> None:
    """A hide takes a position out of what is read; only an expand or a rewind takes a control's word away."""
    controls = [Control(4, "compaction", 3), Control(5, "hide", 4, first=4)]
    assert context(6, controls) == Context(None, summary=4, spans=((5, 6),))


def test_a_hide_whose_end_comes_before_its_beginning_covers_nothing() -> None:
    """Nothing lies from 4 to 2, so nothing is taken out, and nothing is shown twice."""
    spans = context(6, [Control(5, "hide", 2, first=4)]).spans
    assert_well_formed(spans, 6)
    assert positions(spans) == [1, 2, 3, 4, 5, 6]
