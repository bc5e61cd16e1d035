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

What was sent once is not moved by what comes later, so the prompt's prefix stays byte-stable.
"""

from collections.abc import Iterable

from legato.domain.entries import AnyBody, Item, Message, Reasoning, Text, ToolCall, ToolResult

UNANSWERED = "No result of this call was recorded."


def shape(bodies: Iterable[AnyBody]) -> tuple[Item, ...]:
    """The items a model is shown for these bodies."""
    shaper = _Shaper()
    for body in bodies:
        shaper.take(body)
    shaper.close_step()
    return tuple(_without_idle_reasoning(shaper.out))


class _Shaper:
    """One pass: the calls of the current step are held back until their results are known."""

    def __init__(self) -> None:
        self.out: list[Item] = []
        self.calls: dict[str, ToolCall] = {}
        self.results: dict[str, ToolResult] = {}
        self.held: list[Item] = []  # said while calls were pending; goes after their results
        self.seen: set[str] = set()
        self.cut_off: Item | None = None
        self.spoken = False  # someone spoke, if only an empty word, since the calls of this step

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
    return Message("user", (Text(f"[Result of an earlier tool call]\n{result.output}"),))


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


def problems(items: Iterable[Item]) -> list[str]:
    """The rules that a request breaks, in words; empty when it is well-formed."""
    found: list[str] = []
    seen: set[str] = set()
    pending: list[str] = []
    previous: Item | None = None
    for item in items:
        if isinstance(item, ToolResult):
            if item.call_id in pending:
                pending.remove(item.call_id)
            else:
                found.append(f"result without its call: {item.call_id}")
        elif pending and not (isinstance(item, ToolCall) and isinstance(previous, ToolCall)):
            found.append(f"calls not answered at once: {pending}")
            pending = []
        if isinstance(item, ToolCall):
            if item.call_id in seen:
                found.append(f"call id used twice: {item.call_id}")
            seen.add(item.call_id)
            pending.append(item.call_id)
        if isinstance(item, Message | Reasoning) and _empty(item):
            found.append("empty item")
        if isinstance(previous, Reasoning) and not (
            isinstance(item, ToolCall | Reasoning) or (isinstance(item, Message) and item.role == "assistant")
        ):
            found.append("reasoning that led to nothing")
        previous = item
    if pending:
        found.append(f"calls not answered: {pending}")
    if isinstance(previous, Reasoning):
        found.append("reasoning that led to nothing")
    return found
