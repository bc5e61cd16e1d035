"""How a conversation stands: what it is called, who answers, how full its context is. For the line of status."""

from typing import Any

from rich.cells import cell_len

from legato.cli import care
from legato.cli.client import path_of
from legato.cli.line import Line
from legato.cli.paint import short
from legato.errors import LegatoError

Row = dict[str, Any]


class Standing:
    """One conversation, or one that is yet to begin."""

    def __init__(self, title: str = "", model: str = "") -> None:
        self._title, self.model = title, model
        self.name = ""
        self._tokens, self._context = 0, 0.0
        self._trouble = ""

    async def learn(self, line: Line, conversation: str, turn: str | None) -> None:
        """Look again, after this turn has ended."""
        try:
            row = await described(line, conversation)
            self._title, self.name = care.called(row), row["name"] or ""
            usage = await line.ask(lambda client: client.get(path_of("v1", "conversations", conversation, "usage")))
            self._tokens = usage["total_tokens"]
            if turn is not None:
                await self._measure(line, await line.ask(lambda client: client.get(path_of("v1", "responses", turn))))
            self._trouble = ""
        except LegatoError as error:
            self._trouble = error.message

    async def _measure(self, line: Line, response: Row) -> None:
        self.model = response["model"]
        if response["usage"]:
            models = (await line.ask(lambda client: client.get("/v1/models")))["data"]
            window = next((row["context_window"] for row in models if row["id"] == self.model), None)
            self._context = response["usage"]["total_tokens"] / window if window else 0.0

    def shown(self, doing: str, width: int) -> str:
        """In one line; where that is narrow, what matters least goes."""
        parts = [
            short(self._title, 40) or "new conversation",
            self.model,
            f"{self._context:.0%} of the context" if self._context else "",
            f"{_count(self._tokens)} tokens" if self._tokens else "",
            doing or short(self._trouble, 40) or "idle",
        ]
        parts = [part for part in parts if part]
        while len(parts) > 2 and cell_len(" · ".join(parts)) > width:
            parts.pop(-2)
        return " · ".join(parts)


async def described(line: Line, conversation: str) -> Row:
    """A conversation with its title, its name and what it begins with."""
    found = await line.ask(lambda client: client.get("/v1/resolve", what=conversation))
    row: Row = found["data"][0]
    return row


def _count(tokens: int) -> str:
    return str(tokens) if tokens < 1000 else f"{tokens / 1000:.1f}k" if tokens < 1_000_000 else f"{tokens / 1e6:.1f}M"
