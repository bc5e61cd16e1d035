"""What a provider demands of a request, said a second time, so that the rules are not checked against themselves."""

from collections.abc import Iterable

from legato.domain.entries import Item, Message, Reasoning, Text, ToolCall, ToolResult


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


def _empty(item: Message | Reasoning) -> bool:
    if isinstance(item, Reasoning):
        return not item.text and not item.encrypted
    return all(isinstance(part, Text) and not part.text.strip() for part in item.parts)
