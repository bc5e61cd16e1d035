"""A client of the drill: acts the plan out over real sockets and keeps the ledger.

It behaves as a good client does: what was not answered is asked again with the same idempotency key, a stream that
broke off is taken up after the last event that came. Only where the plan says so it gives up, and then what it asked
may or may not be there.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any

from legato.cli.prove.faults import Faults
from legato.cli.prove.fleet import Fleet, Node
from legato.cli.prove.ledger import Asked, Ledger, Looked, Refusal, Told, mark, marks_in
from legato.cli.prove.plan import Act, acts
from legato.cli.prove.wire import Answer, Cut, ask, follow

PERSEVERANCE = 90.0
"""Seconds after which a client gives up although the plan does not say so."""

AGAIN = (502, 503)
"""The gateway asks to come back: nobody knows whether the request was taken."""

Send = Callable[[Node], Answer]
Following = AbstractContextManager[tuple[Answer, Iterator[dict[str, Any]]]]


class Client:
    """One thread that talks."""

    def __init__(
        self,
        number: int,
        seed: int,
        *,
        fleet: Fleet,
        faults: Faults,
        ledger: Ledger,
        notes: Path,
        stopping: threading.Event,
    ) -> None:
        self._number, self._acts = number, acts(seed, number)
        self._fleet, self._faults, self._ledger, self._notes = fleet, faults, ledger, notes
        self._stopping = stopping
        self._key = fleet.key
        self._chance = random.Random(f"{seed}/pace/{number}")
        self._turn = number
        self._tips: dict[str, str] = {}  # of chains: the response to go on after
        self._broken: set[str] = set()  # chains that nobody can go on with
        self._answered: dict[str, list[str]] = {}
        self._sendings: list[tuple[Asked, Send]] = []

    def run(self) -> None:
        """Talk until told to stop."""
        for act in self._acts:
            if self._stopping.wait(self._chance.uniform(0, 0.1)):
                return
            if act.place in self._broken:
                continue
            asked = Asked(
                key=act.key,
                way=act.way,
                place=act.place,
                text=act.text,
                expected=act.expected,
                gives_up=act.gives_up,
                sent=self._ledger.tick(),
                begun=time.monotonic(),
            )
            self._ledger.asked.append(asked)
            if act.way == "stream":
                self._stream(act, asked)
            else:
                self._plain(act, asked)
            self._aside(act)

    # -- one input

    def _plain(self, act: Act, asked: Asked) -> None:
        send = self._sending(act)
        answer = self._until_taken(act, asked, send)
        if answer is None:
            if act.way == "chained":
                self._broken.add(act.place)
            return
        self._sendings.append((asked, send))
        if act.way == "tool" and self._faults.wants("while a tool runs"):
            self._faults.reached("while a tool runs", self._node_that_runs(act))
        if act.way == "chained":
            self._tips[act.place] = answer.body["id"]
        if act.place.startswith("talk-") and answer.body.get("status") == "completed":
            self._answered.setdefault(act.place, []).append(act.key)

    def _sending(self, act: Act) -> Send:
        """The request, to be sent to any node, as often as needed, always the same."""
        key = f"prove-{act.key}"
        body: dict[str, Any]
        if act.way == "session":
            body = {"messages": [{"role": "user", "content": act.text}]}
            return lambda node: ask(
                *(node.url, self._key, "POST", "/v1/chat/completions", body),
                X_Hermes_Session_Id=act.place,
                Idempotency_Key=key,
            )
        body = {"input": act.text}
        if act.way == "chained":
            body |= {"previous_response_id": self._tips[act.place]} if act.place in self._tips else {}
        else:
            body |= {"conversation": act.place}
        if act.way in ("background", "tool"):
            body |= {"background": True}
        return lambda node: ask(node.url, self._key, "POST", "/v1/responses", body, Idempotency_Key=key)

    def _until_taken(self, act: Act, asked: Asked, send: Send) -> Answer | None:
        """Send until it is acknowledged."""
        twin = self._twin(asked, send) if act.twice else None
        answer = self._tried(act, asked, send)
        if twin is not None:
            twin.join()
        return answer

    def _tried(self, act: Act, asked: Asked, send: Send) -> Answer | None:
        while time.monotonic() - asked.begun < PERSEVERANCE:
            node = self._next_node()
            asked.tries += 1
            try:
                answer = send(node)
            except Cut:
                self._cut(asked)
                if act.gives_up:
                    return None
                continue
            if answer.status in AGAIN and not _spent(answer):
                self._cut(asked)
                continue
            if not self._note(asked, answer):
                return None
            self._faults.reached("after the acknowledgement", node)
            return answer
        return None

    def _twin(self, asked: Asked, send: Send) -> threading.Thread:
        """The same request once more, at the same moment, to another node."""
        asked.doubles += 1
        node = self._next_node()

        def run() -> None:
            try:
                answer = send(node)
            except Cut:
                return
            if answer.status not in AGAIN:
                self._note(asked, answer, second=True)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def _note(self, asked: Asked, answer: Answer, *, second: bool = False) -> bool:
        """Write down what came back; False when it is not what anyone should get."""
        body = answer.body
        if _spent(answer):
            asked.taken, asked.done = self._ledger.tick(), time.monotonic()
            return True
        if answer.status != 200:
            self._ledger.refusals.append(Refusal(f"input {asked.key} ({asked.way})", answer.status, str(body)[:300]))
            return False
        where = body["legato"] if "legato" in body else {"turn": body["id"], "conversation": body["conversation"]["id"]}
        asked.turns.add(where["turn"])
        asked.conversations |= {where["conversation"], answer.headers["x-legato-conversation"]}
        if second:
            return True
        asked.taken = self._ledger.tick()
        asked.done = time.monotonic()
        if "choices" in body:
            asked.answer = body["choices"][0]["message"]["content"]
        elif body["status"] == "completed":
            asked.answer = last_text(body)
        return True

    # -- streams

    def _stream(self, act: Act, asked: Asked) -> None:
        """Follow an answer to its end, through every cut."""
        told = asked.told = Told()
        cuts = list(act.cuts)
        while not told.ended and time.monotonic() - asked.begun < PERSEVERANCE:
            node = self._next_node()
            asked.tries += 1
            try:
                with self._following(node, act, asked, told) as (answer, events):
                    if answer.status in AGAIN:
                        raise Cut(f"status {answer.status}")
                    if answer.status != 200:
                        what = f"input {asked.key} (stream)"
                        self._ledger.refusals.append(Refusal(what, answer.status, str(answer.body)[:300]))
                        return
                    for event in islice(events, cuts.pop(0) if cuts else None):
                        take(told, event)
                        if asked.taken is None:
                            self._created(asked, event, node)
                told.cuts += not told.ended
            except Cut:
                self._cut(asked)
        if told.ended:
            asked.done = time.monotonic()

    def _following(self, node: Node, act: Act, asked: Asked, told: Told) -> Following:
        """The request that begins the stream, or takes it up after the last event that came."""
        if asked.taken is None:
            body = {"conversation": act.place, "input": act.text, "stream": True}
            return follow(node.url, self._key, "POST", "/v1/responses", body, Idempotency_Key=f"prove-{act.key}")
        [turn] = asked.turns
        path = f"/v1/responses/{turn}?stream=true&starting_after={told.numbers[-1]}"
        return follow(node.url, self._key, "GET", path)

    def _created(self, asked: Asked, event: dict[str, Any], node: Node) -> None:
        response = event["response"]
        asked.turns.add(response["id"])
        asked.conversations.add(response["conversation"]["id"])
        asked.taken = self._ledger.tick()
        self._faults.reached("after the first event", node)

    # -- asides

    def _aside(self, act: Act) -> None:
        node = self._next_node()
        try:
            match act.aside:
                case "read":
                    self._read(node)
                case "compact" if act.place.startswith("talk-"):
                    path = f"/v1/conversations/{act.place}/compact"
                    answer = ask(node.url, self._key, "POST", path, {}, Idempotency_Key=f"prove-{act.key}")
                    error = answer.body.get("error", {})
                    self._ledger.compacted("done" if answer.status == 200 else str(error.get("code")))
                case "resend" if self._sendings:
                    asked, send = self._chance.choice(self._sendings)
                    resend(self._ledger, asked, send(node))
                case _:
                    pass
        except Cut:
            return

    def _read(self, node: Node) -> None:
        if not self._answered:
            return
        place = self._chance.choice(list(self._answered))
        expected = tuple(self._answered[place])
        path = f"/v1/conversations/{place}/items?limit=100&order=asc"
        answer = ask(node.url, self._key, "GET", path)
        if answer.status == 200:
            found = tuple(key for item in answer.body["data"] if is_user(item) for key in marks_in(text_of(item)))
            self._ledger.looked.append(Looked(place, expected, found))
        elif answer.status not in AGAIN:
            self._ledger.refusals.append(Refusal(f"reading {place}", answer.status, str(answer.body)[:300]))

    def again(self, node: Node) -> None:
        """When all is over: some requests of before, once more, after every restart."""
        for asked, send in self._chance.sample(self._sendings, min(5, len(self._sendings))):
            resend(self._ledger, asked, send(node))

    # -- what they share

    def _next_node(self) -> Node:
        self._turn += 1
        return self._fleet.nodes[self._turn % len(self._fleet.nodes)]

    def _node_that_runs(self, act: Act) -> Node | None:
        """The node in which the tool of this input has begun, if it begins soon."""
        for _ in range(40):
            for line in self._notes.read_text("utf-8").splitlines() if self._notes.exists() else ():
                if line.startswith(f"begun {mark(act.key)} "):
                    return self._fleet.of(int(line.rsplit(" ", 1)[1]))
            time.sleep(0.025)
        return None

    def _cut(self, asked: Asked) -> None:
        if asked.cut is None:
            asked.cut = time.monotonic()
        time.sleep(0.05)


def _spent(answer: Answer) -> bool:
    """Whether a turn met its end because its gateway was killed in it too often; Chat Completions tells that so."""
    error = answer.body.get("error") if answer.status in AGAIN else None
    return isinstance(error, dict) and error.get("code") == "attempts_exhausted"


def resend(ledger: Ledger, asked: Asked, answer: Answer) -> None:
    """A request that was made before must be the same turn."""
    if answer.status in AGAIN:
        return
    if answer.status != 200:
        ledger.refusals.append(Refusal(f"input {asked.key} again", answer.status, str(answer.body)[:300]))
        return
    asked.doubles += 1
    asked.turns.add(answer.body["legato"]["turn"] if "legato" in answer.body else answer.body["id"])


def take(told: Told, event: dict[str, Any]) -> None:
    """One event of a stream."""
    told.numbers.append(event["sequence_number"])
    if event["type"] == "response.output_text.delta" and event["delta"]:
        told.texts[event["item_id"]] = told.texts.get(event["item_id"], "") + event["delta"]
    told.ended = event["type"] in ("response.completed", "response.failed", "response.incomplete")


def is_user(item: dict[str, Any]) -> bool:
    return bool(item["type"] == "message" and item["role"] == "user")


def text_of(item: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in item["content"])


def texts_of(response: dict[str, Any]) -> dict[str, str]:
    """The prose of a response, by item."""
    said = {item["id"]: text_of(item) for item in response["output"] if item["type"] == "message"}
    return {id: text for id, text in said.items() if text}


def last_text(response: dict[str, Any]) -> str:
    texts = list(texts_of(response).values())
    return texts[-1] if texts else ""
