"""The reading of one conversation: what its parts share while it is re-proved."""

from typing import Any, TypeVar

from msgspec import DecodeError, Struct, ValidationError, convert, field, json

from legato.domain.handles import Address
from legato.domain.turns import Status, TurnKind
from legato.store.database import Row, Tx
from legato.store.verify.rules import Finding, Rule

T = TypeVar("T", bound=Struct)

FIRST = -(2**62)  # before every number a column can hold


class Ancestor(Struct, frozen=True):
    id: str
    principal: str
    parent_id: str | None
    base_seq: int
    head_seq: int


class Subject(Struct, frozen=True):
    """The conversation that is read."""

    id: str
    principal: str
    parent_id: str | None
    base_seq: int
    head_seq: int
    tip_turn: str | None
    last_n: int
    fence: int
    settings: str
    deleted_at: float | None
    purged_at: float | None
    read_upto: int | None
    principals: int


class KnownTurn(Struct):
    """What is kept of a turn: `brought` and `told` are hashes of what its entries have to say, by entry id."""

    id: str
    n: int
    kind: TurnKind
    status: Status
    parent: str | None
    joined: str | None
    first: int | None
    last: int | None
    indexed: bool
    pruned: bool
    brought: dict[str, int] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)


class Reading:
    """Everything is read once, in pages; of what was read, only what a later row is compared with is kept."""

    def __init__(self, tx: Tx, subject: Subject) -> None:
        self.tx, self.subject = tx, subject
        self.found: list[Finding] = []
        self.id = subject.id
        self.ancestors: list[Ancestor] = []  # the parent first
        self.turns: dict[str, KnownTurn] = {}
        self.joins: list[tuple[str, str]] = []  # turn, and the input that followers were told has joined it

    def add(self, rule: Rule, where: str, what: str) -> None:
        """A finding in this conversation; `where` is empty for the conversation itself."""
        self.found.append(Finding(rule, f"{self.id}/{where}" if where else self.id, what))

    def typed(self, kind: type[T], row: Row, where: str) -> T | None:
        """A row as a value, or a finding: SQLite keeps anything in any column."""
        try:
            return convert(dict(zip(kind.__struct_fields__, row, strict=True)), kind)
        except ValidationError as error:
            self.add(Rule.value, where, str(error))
            return None

    def decoded(
        self, decoder: json.Decoder[Any], raw: bytes | str | None, rule: Rule, where: str, *, exact: bool = True
    ) -> Any:
        """A stored JSON text as a value. It is understood when writing the value again loses nothing of it."""
        if raw is None:
            return None
        try:
            value = decoder.decode(raw)
            again = json.encode(value) if exact else raw
            if again != raw and json.decode(again) != json.decode(raw):
                self.add(rule, where, "holds something that nobody knows")
        except (DecodeError, UnicodeDecodeError) as error:
            self.add(rule, where, f"cannot be read: {error}")
            return None
        return value


def is_address(value: str) -> bool:
    """Names are compared as texts, so an address has to be written in the one way."""
    try:
        return Address.parse(value).value == value
    except DecodeError:
        return False
