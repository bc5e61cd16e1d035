"""Each check of the drill finds what it is for: records in which one thing is wrong, and nothing else."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from legato.cli.prove.checks import KINDS, check
from legato.cli.prove.ledger import Asked, Finding, Found, Looked, Outcome, Piece, Refusal, Told

CONVERSATION, ELSEWHERE = "conv_1", "conv_2"
UNKNOWN = "Whether it took effect is unknown: check before doing it again."


class Records:
    """A small drill in which everything held: a plain input, a stream, a tool call, and one that nobody answered."""

    def __init__(self) -> None:
        self.plain = _asked("0.0", "named", "reply only [0.0] yes", sent=1, taken=2, answer="[0.0] yes")
        self.plain.expected = "[0.0] yes"
        self.stream = _asked("0.1", "stream", "write 2 words [0.1]", sent=3, taken=4)
        self.stream.told = Told(numbers=[0, 1, 2, 3], texts={"msg_1": "word1 word2"}, ended=True, cuts=1)
        self.tool = _asked("0.2", "tool", 'call note {"key": "[0.2]"}', sent=5, taken=6)
        self.unanswered = _asked("0.3", "named", "hello [0.3]", sent=7, taken=None)
        self.unanswered.gives_up = True
        self.unanswered.turns, self.unanswered.conversations = set(), set()
        self.asked = [self.plain, self.stream, self.tool, self.unanswered]
        self.looked = [Looked("talk", ("0.0",), ("0.0", "0.1"))]
        self.refusals: list[Refusal] = []
        self.found = Found(
            conversations={
                CONVERSATION: [
                    Piece("user", "reply only [0.0] yes"),
                    Piece("assistant", "[0.0] yes"),
                    Piece("user", "write 2 words [0.1]"),
                    Piece("assistant", "word1 word2"),
                    Piece("user", 'call note {"key": "[0.2]"}'),
                    Piece("call", '{"key": "[0.2]"}', "call_1"),
                    Piece("result", "noted [0.2]", "call_1"),
                ]
            },
            names={"talk": [CONVERSATION]},
            turns={
                "turn 0.0": Outcome("completed", CONVERSATION, {"msg_0": "[0.0] yes"}),
                "turn 0.1": Outcome("completed", CONVERSATION, {"msg_1": "word1 word2"}),
                "turn 0.2": Outcome("completed", CONVERSATION, {"msg_2": "noted"}),
            },
            runs={"0.2": 1},
            verify=[],
        )

    def change(self, **fields: Any) -> None:
        self.found = replace(self.found, **fields)

    @property
    def pieces(self) -> list[Piece]:
        return self.found.conversations[CONVERSATION]

    @property
    def findings(self) -> list[Finding]:
        return check(self.asked, self.looked, self.refusals, self.found)


def _asked(key: str, way: str, text: str, *, sent: int, taken: int | None, answer: str | None = None) -> Asked:
    return Asked(
        key=key,
        way=way,
        place="talk",
        text=text,
        sent=sent,
        taken=taken,
        answer=answer,
        turns={f"turn {key}"},
        conversations={CONVERSATION},
    )


def test_where_everything_held_nothing_is_found() -> None:
    """Also when what was never acknowledged is there after all."""
    records = Records()
    assert records.findings == []
    records.pieces.append(Piece("user", "hello [0.3]"))
    assert records.findings == []


Damage = Callable[[Records], None]


def _lose(records: Records) -> None:
    del records.pieces[0]
    records.looked.clear()


def _double(records: Records) -> None:
    records.pieces.append(Piece("user", "hello [0.3]"))
    records.pieces.append(Piece("user", "hello [0.3]"))


def _two_turns(records: Records) -> None:
    records.plain.turns.add("turn 0.0 again")
    records.found.turns["turn 0.0 again"] = records.found.turns["turn 0.0"]


def _swap(records: Records) -> None:
    records.pieces[0], records.pieces[2] = records.pieces[2], records.pieces[0]


def _add_a_stranger(records: Records) -> None:
    records.pieces.append(Piece("user", "hello [9.9]"))


def _misplace(records: Records) -> None:
    records.found.conversations[ELSEWHERE] = [Piece("user", "hello [0.3]")]


def _say_otherwise(records: Records) -> None:
    records.pieces[0] = Piece("user", "reply only [0.0] no")


def _leave_unended(records: Records) -> None:
    records.found.turns["turn 0.2"] = Outcome("in_progress", CONVERSATION)


def _forget_a_turn(records: Records) -> None:
    del records.found.turns["turn 0.2"]


def _answer_wrongly(records: Records) -> None:
    records.plain.answer = None
    records.found.turns["turn 0.0"] = Outcome("completed", CONVERSATION, {"msg_0": "[0.0] no"})


def _answer_otherwise_later(records: Records) -> None:
    records.plain.expected = None
    records.found.turns["turn 0.0"] = Outcome("completed", CONVERSATION, {"msg_0": "[0.0] no"})


def _tell_with_a_gap(records: Records) -> None:
    records.stream.told = Told(numbers=[0, 1, 3], texts={"msg_1": "word1 word2"}, ended=True)


def _tell_again(records: Records) -> None:
    records.stream.told = Told(numbers=[0, 1, 1, 2], texts={"msg_1": "word1 word2"}, ended=True)


def _tell_no_end(records: Records) -> None:
    records.stream.told = Told(numbers=[0, 1], texts={"msg_1": "word1"})


def _never_answer(records: Records) -> None:
    records.unanswered.gives_up = False


def _tell_another_text(records: Records) -> None:
    records.stream.told = Told(numbers=[0, 1, 2], texts={"msg_1": "word1"}, ended=True)


def _split_for_clients(records: Records) -> None:
    records.stream.conversations = {ELSEWHERE}


def _split_in_the_list(records: Records) -> None:
    records.change(names={"talk": [CONVERSATION, ELSEWHERE]})


def _repeat_the_tool(records: Records) -> None:
    records.change(runs={"0.2": 2})


def _never_run_the_tool(records: Records) -> None:
    records.change(runs={})


def _hide_from_a_reader(records: Records) -> None:
    records.looked.append(Looked("talk", ("0.0", "0.1"), ("0.0",)))


def _show_a_reader_another_order(records: Records) -> None:
    records.looked.append(Looked("talk", ("0.0", "0.1"), ("0.1", "0.0")))


def _refuse(records: Records) -> None:
    records.refusals.append(Refusal("input 0.0 (named)", 500, "oh"))


def _break_a_rule(records: Records) -> None:
    records.change(verify=["entries: conv_1 has no entry 3"])


@pytest.mark.parametrize(
    ("damage", "kind", "named"),
    [
        (_lose, "lost", "0.0"),
        (_double, "doubled", "0.3"),
        (_two_turns, "doubled", "0.0"),
        (_swap, "out of order", "0.0"),
        (_add_a_stranger, "strange", "[9.9]"),
        (_misplace, "strange", "0.3"),
        (_say_otherwise, "changed", "0.0"),
        (_leave_unended, "unended", "0.2"),
        (_forget_a_turn, "unended", "0.2"),
        (_answer_wrongly, "changed", "0.0"),
        (_answer_otherwise_later, "changed", "0.0"),
        (_tell_with_a_gap, "torn", "0.1"),
        (_tell_again, "torn", "0.1"),
        (_tell_another_text, "torn", "0.1"),
        (_tell_no_end, "torn", "0.1"),
        (_never_answer, "unanswered", "0.3"),
        (_split_for_clients, "split", "talk"),
        (_split_in_the_list, "split", "talk"),
        (_repeat_the_tool, "repeated tool", "0.2"),
        (_never_run_the_tool, "lost effect", "0.2"),
        (_hide_from_a_reader, "unreadable", "0.1"),
        (_show_a_reader_another_order, "out of order", "talk"),
        (_refuse, "refused", "0.0"),
        (_break_a_rule, "verify", "conv_1"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else None,
)
def test_what_is_wrong_is_found_and_named(damage: Damage, kind: str, named: str) -> None:
    """One finding, of its kind, that names what it is about."""
    records = Records()
    damage(records)
    [finding] = records.findings
    assert finding.kind == kind
    assert named in finding.what
    assert kind in KINDS


def test_a_call_in_doubt_may_have_run_or_not() -> None:
    """Killed while the tool ran: the outcome is unknown, and nobody repeats it."""
    records = Records()
    records.pieces[-1] = Piece("result", UNKNOWN, "call_1")
    records.change(runs={})
    assert records.findings == []


def test_what_two_clients_say_at_once_may_come_in_any_order() -> None:
    """Neither was acknowledged before the other was sent."""
    records = Records()
    records.plain.taken, records.stream.sent = 4, 2
    _swap(records)
    records.looked.clear()
    assert records.findings == []
