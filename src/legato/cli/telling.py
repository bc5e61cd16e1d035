"""What a conversation's events look like: a fold of the stream into rows that are final and rows that are live.

Everything that is shown comes through here, from the one stream of `GET /v1/conversations/{id}/events`: what was typed
in this terminal, in another one, or in a messenger. So every terminal shows the same turns in the same order, and
nothing is shown that the gateway has not kept.
"""

import json
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from legato.cli.markdown import MarkdownStream
from legato.cli.paint import Paint, short
from legato.cli.plain import plain

Event = dict[str, Any]
Item = dict[str, Any]

OWN, OTHER = "›", "»"
CALLS = ("function_call", "custom_tool_call")
RESULTS = ("function_call_output", "custom_tool_call_output")
RESULT = 60
RECAP_ROWS = 24
RECAP_TALK = 6


class Telling:
    """One conversation, as it is told. `own` says whether a turn was sent from here; `known` are items that the
    terminal has shown before."""

    def __init__(self, paint: Paint, own: Callable[[str, str], bool], known: frozenset[str] = frozenset()) -> None:
        self._paint, self._own, self._known = paint, own, known
        self.turn: str | None = None
        self.since = 0.0
        self._told: set[str] = set()
        self._writing: MarkdownStream | None = None
        self._calls: dict[str, Item] = {}
        self._cut = False

    def take(self, event: Event) -> list[str]:
        """One event; the rows that are final now."""
        match event["type"]:
            case "turn.admitted":
                return self._admitted(event)
            case "turn.ended":
                return self._ended(event)
            case "turn.event":
                return self._happened(event["event"])
        return []

    def live(self, most: int) -> list[str]:
        """What is not final yet."""
        calls = [row for call in self._calls.values() for row in self._call("◌", call, "")]
        written = self._writing.live(max(most - len(calls), 1)) if self._writing else []
        return (written + calls)[-most:]

    # -- the life of a turn

    def _admitted(self, event: Event) -> list[str]:
        self.turn, self.since = event["turn"], time.monotonic()
        self._told = set(self._known)
        rows: list[str] = []
        for item in event["input"]:
            said = text_of(item) if item["type"] == "message" else ""
            own = self._own(event["turn"], said)
            if item["id"] in self._known:
                continue
            self._told.add(item["id"])
            if item["type"] == "message":
                rows += self.said(said, OWN if own else OTHER, item["role"])
            elif item["type"] in RESULTS:
                rows += ["", *self._call("✓", {"name": "tool", "arguments": ""}, output_of(item))]
        return rows

    def _happened(self, event: Event) -> list[str]:
        if "item" in event and event["item"]["id"] in self._known:
            return []
        match event["type"]:
            case "response.output_item.added" if event["item"]["type"] in ("message", "reasoning"):
                rows = self._finish()
                thinking = event["item"]["type"] == "reasoning"
                self._writing = MarkdownStream(self._paint, "dim italic" if thinking else "")
                return [*rows, *self._resumed(), ""]
            case "response.output_item.added" if event["item"]["type"] in CALLS:
                self._calls[event["item"]["call_id"]] = dict(event["item"])
            case "response.output_text.delta" | "response.refusal.delta" | "response.reasoning_summary_text.delta" if (
                self._writing
            ):
                return self._writing.feed(event["delta"])
            case "response.output_item.done":
                return self._done(event["item"])
        return []

    def _done(self, item: Item) -> list[str]:
        """An item is whole, or will never be."""
        self._told.add(item["id"])
        match item["type"]:
            case kind if kind in CALLS:
                self._calls[item["call_id"]] = dict(item)
                return []
            case kind if kind in RESULTS:
                call = self._calls.pop(item["call_id"], {"name": "tool", "arguments": ""})
                failed = item.get("legato", {}).get("is_error", False)
                return ["", *self._call("✗" if failed else "✓", call, output_of(item))]
            case "compaction":
                return ["", *self._folded(item)]
        self._cut = item.get("status") == "incomplete"
        return self._finish()

    def _resumed(self) -> list[str]:
        """What follows an item that was cut off: the gateway was restarted, and the turn goes on."""
        if not self._cut:
            return []
        self._cut = False
        return ["", *self._paint.dim("⋯ interrupted here; the answer begins again")]

    def _ended(self, event: Event) -> list[str]:
        rows = self._finish()
        for item in event["output"]:  # what no event told: upkeep has none
            if item["id"] not in self._told:
                rows += self._whole(item)
        rows += [row for call in self._calls.values() for row in ["", *self._call("◌", call, "handed on")]]
        rows += self._how(event)
        self.turn, self._calls, self._cut = None, {}, False
        return rows

    def _how(self, event: Event) -> list[str]:
        """How a turn ended, if it needs saying."""
        if event["status"] == "cancelled":
            return ["", *self._paint.dim("■ stopped")]
        if event["status"] == "failed":
            why = plain(event.get("error") or "The turn failed.")
            told = self._paint.text(("✗ ", "bold red"), (why, "red"), indent=2)
            return ["", *told, *self._paint.dim("  What you said is kept. /retry tries again.")]
        return ["", *self._paint.dim("⋯ cut off by a limit, or by the provider's filter")] if self._cut else []

    def _finish(self) -> list[str]:
        rows = self._writing.close() if self._writing else []
        self._writing = None
        return rows

    def _whole(self, item: Item) -> list[str]:
        """An item that is told at once."""
        if item["type"] == "message" and item["role"] == "assistant":
            written = MarkdownStream(self._paint)
            return ["", *written.feed(text_of(item)), *written.close()]
        if item["type"] == "message":
            return self.said(text_of(item), OTHER, item["role"])
        if item["type"] in CALLS:
            self._calls[item["call_id"]] = item
            return []
        return self._done(item)

    # -- the look of things

    def said(self, text: str, mark: str, role: str = "user") -> list[str]:
        style = "bold cyan" if mark == OWN else "bold magenta"
        who = [] if role == "user" else [(f"{role}: ", "dim")]
        return ["", *self._paint.text((f"{mark} ", style), *who, (plain(text), "bold"), indent=2)]

    def _call(self, mark: str, call: Item, result: str) -> list[str]:
        style = {"✓": "green", "✗": "red"}.get(mark, "yellow")
        width = self._paint.width
        arguments = short(_compact(given_to(call)), max(width // 3, 10))
        told = short(result, max(min(RESULT, width - len(arguments) - len(call["name"]) - 8), 10))
        pieces = [(f"{mark} ", style), (plain(call["name"]), ""), (f" {arguments}" if arguments else "", "dim")]
        return self._paint.text(*pieces, (f"  {told}" if told else "", "dim"), indent=2)

    def _folded(self, item: Item) -> list[str]:
        about = item.get("legato") or {}
        before, after = about.get("tokens_before"), about.get("tokens_after")
        size = f" ({before:,} → {after:,} tokens)" if before and after else ""
        return self._paint.dim(f"◆ the past was summarised for the model{size}; nothing is lost")

    def recap(self, items: list[Item], title: str, when: float | None) -> list[str]:
        """The end of what was said before, bounded."""
        last = datetime.fromtimestamp(when).strftime("%Y-%m-%d %H:%M") if when else ""
        header = " · ".join(part for part in (plain(title), last) if part)
        rows: list[str] = []
        shown = [item for item in items if item["type"] in ("message", "compaction")][-RECAP_TALK:]
        while len(shown) > 1 and shown[0].get("role") == "assistant":
            shown.pop(0)  # begin with a question
        for item in shown:
            if item["type"] == "compaction":
                rows += ["", *self._folded(item)]
            elif item["role"] == "assistant":
                written = MarkdownStream(self._paint)
                rows += ["", *_ends(written.feed(text_of(item)) + written.close(), RECAP_ROWS // 3, self._paint)]
                if item.get("status") == "incomplete":
                    rows += self._paint.dim("⋯ cut off here")
            else:
                said = self.said(text_of(item), OWN, item["role"])
                rows += _ends(said, RECAP_ROWS // 4, self._paint)
        if len(rows) > RECAP_ROWS:
            rows = ["", *self._paint.dim("…"), *rows[-RECAP_ROWS:]]
        return [*self._paint.dim(f"── {header} ──"), *rows]


def _ends(rows: list[str], most: int, paint: Paint) -> list[str]:
    """The beginning and the end of something long."""
    if len(rows) <= most:
        return rows
    half = most // 2
    return [*rows[:half], *paint.dim(f"  … {len(rows) - 2 * half} lines …"), *rows[-half:]]


def text_of(item: Item) -> str:
    """What a message says."""
    return "".join(
        part.get("text", part.get("refusal", f"[{part['type'].removeprefix('input_')}]")) for part in item["content"]
    )


def given_to(call: Item) -> str:
    """What a tool was called with: JSON, or the text of a custom one."""
    return str(call["arguments"] if "arguments" in call else call["input"])


def output_of(item: Item) -> str:
    """What a call gave back, in words."""
    output = item["output"]
    return output if isinstance(output, str) else text_of({"content": output})


def _compact(arguments: str) -> str:
    """The arguments of a call, without what every call has."""
    try:
        given = json.loads(arguments)
    except ValueError:
        return arguments
    if not isinstance(given, dict):
        return arguments
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in given.items())
