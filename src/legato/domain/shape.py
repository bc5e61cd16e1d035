"""A provider request is well-formed for any log.

Logs are honest: they hold crashes, late results, calls nobody answered. Providers are strict. `shape` turns any
sequence of bodies into one that every provider takes, by these rules:

- no empty message;
- every call is answered exactly once, directly after the calls of its step; a call without a result says so;
- a result without its call, or one that comes after the model has gone on, is told as text in its place;
- call ids are unique;
- reasoning stands directly before what it led to;
- an answer that was cut off is shown only where a person spoke after it; where the model took a new run at it, or is
  about to, it would only confuse.

What was sent once is not moved by what comes later, so the prompt's prefix stays byte-stable. And so a long past need
not be shaped, measured and written anew for each turn: `Past` keeps what was made of it, and `made_of` adds the rest.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, Self, TypeVar

from legato.domain.entries import AnyBody, Item, Message, Reasoning, Text, ToolCall, ToolResult

UNANSWERED = "No result of this call was recorded."


class Addable(Protocol):
    """What is made of items part by part: a number, bytes, a tuple."""

    def __add__(self, other: Any, /) -> Self: ...


Made = TypeVar("Made", bound=Addable)


class Items(tuple[Item, ...]):
    """What a model is shown. `past` is how it begins, where that was shown before."""

    past: "Past | None" = None


class Past:
    """The beginning of what a model is shown, up to where nothing that comes later changes it, and what was made of it.
    It is never the truth: without it the same is made of the log."""

    def __init__(self, items: tuple[Item, ...] = (), seen: frozenset[str] = frozenset()) -> None:
        self.items, self.seen = items, seen
        self._made: dict[Callable[[tuple[Item, ...]], Any], Any] = {}

    def grown(self, bodies: Iterable[AnyBody]) -> "Past | None":
        """This and what came after it; None while that may still be changed by what comes next."""
        shaper = _Shaper(self.seen)
        shaper.take_all(bodies)
        if shaper.calls or shaper.cut_off is not None or (shaper.out and type(shaper.out[-1]) is Reasoning):
            return None
        more = tuple(_without_idle_reasoning(shaper.out))
        past = Past(self.items + more, frozenset(shaper.seen))
        if _begins_apart(more):
            past._made = {maker: made + maker(more) for maker, made in self._made.items()}
        return past

    def made(self, maker: Callable[[tuple[Item, ...]], Made]) -> Made:
        if maker not in self._made:
            self._made[maker] = maker(self.items)
        found: Made = self._made[maker]
        return found


def made_of(items: tuple[Item, ...], maker: Callable[[tuple[Item, ...]], Made]) -> Made:
    """`maker(items)`, for a maker whose results can be added: `maker(a + b) == maker(a) + maker(b)` where `b` begins
    with what a person says."""
    past = items.past if type(items) is Items else None
    return maker(items) if past is None else past.made(maker) + maker(items[len(past.items) :])


def shape(bodies: Iterable[AnyBody], past: Past | None = None) -> Items:
    """The items a model is shown for these bodies, after what it was shown of the past."""
    shaper = _Shaper(past.seen if past is not None else ())
    shaper.take_all(bodies)
    shaper.close_step()
    out = _without_idle_reasoning(shaper.out)
    if past is None:
        return Items(out)
    items = Items((*past.items, *out))
    if _begins_apart(out):
        items.past = past
    return items


def _begins_apart(items: Sequence[Item]) -> bool:
    """Whether nothing of these joins what was said before, as a call joins the message of its step."""
    return not items or (isinstance(items[0], Message) and items[0].role != "assistant")


class _Shaper:
    """One pass: the calls of the current step are held back until their results are known."""

    def __init__(self, seen: Iterable[str] = ()) -> None:
        self.out: list[Item] = []
        self.calls: dict[str, ToolCall] = {}
        self.results: dict[str, ToolResult] = {}
        self.held: list[Item] = []  # said while calls were pending; goes after their results
        self.seen = set(seen)  # the ids of calls
        self.cut_off: Item | None = None
        self.spoken = False  # someone spoke, if only an empty word, since the calls of this step

    def take_all(self, bodies: Iterable[AnyBody]) -> None:
        for body in bodies:
            self.take(body)

    def take(self, body: AnyBody) -> None:
        if type(body) is Message and not self.calls and self.cut_off is None and not body.incomplete:
            self.spoken = body.role != "assistant"  # people and the model in turn, which is nearly everything
            if not _empty(body):
                self.out.append(body)
            return
        if self.cut_off is not None and isinstance(body, Message | Reasoning | ToolCall):
            if isinstance(body, Message) and body.role != "assistant":
                self.out.append(self.cut_off)
            self.cut_off = None
        match body:  # what is most frequent first
            case Message(role="assistant") | Reasoning():
                self._next_step_if_answered()
                if body.incomplete:
                    self.cut_off = None if _empty(body) else body
                elif not _empty(body):
                    self.out.append(body)
            case Message():
                self.spoken = True
                if not _empty(body):
                    self._say(body)
            case ToolCall(call_id=call_id):
                self._next_step_if_answered()
                if call_id not in self.seen:
                    self.seen.add(call_id)
                    self.calls[call_id] = body
            case ToolResult(call_id=call_id):
                if call_id in self.calls and call_id not in self.results:
                    self.results[call_id] = body
                else:
                    self._say(_as_text(body))
            case _:
                pass  # notes, setups and controls are not for the model

    def _say(self, item: Item) -> None:
        (self.held if self.calls else self.out).append(item)

    def _next_step_if_answered(self) -> None:
        if self.results or self.held or self.spoken:
            self.close_step()

    def close_step(self) -> None:
        self.spoken = False
        if not self.calls:  # then nothing is held back, either
            return
        self.out.extend(self.calls.values())
        for call_id in self.calls:
            self.out.append(self.results.get(call_id) or ToolResult(call_id, UNANSWERED, is_error=True))
        self.out.extend(self.held)
        self.calls, self.results, self.held = {}, {}, []


def _empty(item: Message | Reasoning) -> bool:
    if isinstance(item, Reasoning):
        return not item.text and not item.encrypted
    parts = item.parts
    if len(parts) == 1 and type(parts[0]) is Text:
        return not parts[0].text or parts[0].text.isspace()
    return all(isinstance(part, Text) and (not part.text or part.text.isspace()) for part in parts)


def _as_text(result: ToolResult) -> Message:
    return Message("user", (Text(f"[Result of an earlier tool call]\n{result.output}"), *result.attached))


def _without_idle_reasoning(items: list[Item]) -> list[Item]:
    """Drop reasoning that led to nothing the model said or called."""
    if Reasoning not in set(map(type, items)):
        return items
    kept: list[Item] = []
    after: Item | None = None
    for item in reversed(items):
        led_on = isinstance(after, ToolCall | Reasoning) or (isinstance(after, Message) and after.role == "assistant")
        if not isinstance(item, Reasoning) or led_on:
            kept.append(item)
            after = item
    return kept[::-1]
