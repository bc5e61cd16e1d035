"""Checks: what was looked at, whether it is in order, and what to do where it is not."""

from typing import Literal

from msgspec import Struct

State = Literal["ok", "warning", "problem"]


class Check(Struct, frozen=True):
    """One line of a diagnosis. `fix` names what can be mended without a person's judgement."""

    name: str
    state: State
    says: str
    advice: str = ""
    fix: str = ""
