"""Reading everything back, through the API, when all has settled."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from legato.cli.prove.checks import ENDED
from legato.cli.prove.client import text_of, texts_of
from legato.cli.prove.fleet import Fleet
from legato.cli.prove.ledger import Asked, Found, Outcome, Piece, marks_in
from legato.cli.prove.wire import Answer, ask
from legato.errors import StoreUnavailable

SETTLING = 120.0
PAGE = 100


class Survey:
    """Reads through all nodes in turn."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._key = fleet, fleet.key

    def settle(self, asked: list[Asked]) -> dict[str, Outcome]:
        """Wait until every turn that was acknowledged has ended, within a bound; what has become of each."""
        end = time.monotonic() + SETTLING
        turns = sorted({turn for one in asked for turn in one.turns})
        with ThreadPoolExecutor(4) as pool:
            return dict(zip(turns, pool.map(lambda turn: self._outcome(turn, end), turns), strict=True))

    def found(self, turns: dict[str, Outcome], notes: Path, verify: list[str]) -> Found:
        """Everything that is there."""
        listed = list(self._conversations())
        names = defaultdict(list)
        for row in listed:
            if row["name"]:
                names[row["name"]].append(row["id"])
        with ThreadPoolExecutor(4) as pool:
            read = list(pool.map(lambda row: list(self._pieces(row["id"])), listed))
        lines = notes.read_text("utf-8").splitlines() if notes.exists() else []
        runs = Counter(key for line in lines if line.startswith("begun") for key in marks_in(line))
        conversations = {row["id"]: pieces for row, pieces in zip(listed, read, strict=True)}
        return Found(conversations=conversations, names=dict(names), turns=turns, runs=dict(runs), verify=verify)

    def _outcome(self, turn: str, end: float) -> Outcome:
        while True:
            answer = self._get(f"/v1/responses/{turn}")
            if answer.status == 404:
                return Outcome("not found", "")
            response = answer.body
            if response["status"] in ENDED or time.monotonic() > end:
                return Outcome(response["status"], response["conversation"]["id"], texts_of(response))
            time.sleep(0.1)

    def _conversations(self) -> Iterator[dict[str, Any]]:
        after = ""
        while True:
            page = self._get(f"/v1/conversations?limit={PAGE}{after}").body
            yield from page["data"]
            if not page["has_more"]:
                return
            after = f"&after={page['last_id']}"

    def _pieces(self, conversation: str) -> Iterator[Piece]:
        after = ""
        while True:
            page = self._get(f"/v1/conversations/{conversation}/items?limit={PAGE}&order=asc{after}").body
            for item in page["data"]:
                yield _piece(item)
            if not page["has_more"]:
                return
            after = f"&after={page['last_id']}"

    def _get(self, path: str) -> Answer:
        nodes = self._fleet.nodes
        answer = ask(nodes[hash(path) % len(nodes)].url, self._key, "GET", path)
        if answer.status >= 500:
            raise StoreUnavailable(f"{path} cannot be read back: {answer.status} {answer.body}")
        return answer


def _piece(item: dict[str, Any]) -> Piece:
    match item["type"]:
        case "message":
            return Piece(item["role"], text_of(item))
        case "function_call":
            return Piece("call", item["arguments"], item["call_id"])
        case "function_call_output":
            return Piece("result", str(item["output"]), item["call_id"])
        case kind:
            return Piece(kind)
