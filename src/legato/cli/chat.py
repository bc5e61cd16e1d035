"""`legato chat`: a talk in a terminal, over the HTTP API and nothing else.

What is shown comes from one place, the conversation's events. What is typed is sent under a key of its own until the
gateway has it, so a restart in between neither loses nor doubles it; it stands above the prompt as waiting until the
events tell of it. A new talk has no conversation before its first message. Commands (`/title …`) are the gateway's;
only leaving is ours.
"""

import asyncio
import os
import re
import shlex
import signal
import sys
import time
import uuid
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

import click

from legato.cli import care
from legato.cli.client import Client, Way, path_of
from legato.cli.line import Line
from legato.cli.paint import Paint, short
from legato.cli.plain import plain
from legato.cli.screen import Offer, Screen
from legato.cli.standing import Standing, described
from legato.cli.teletype import Teletype
from legato.cli.telling import OWN, Telling
from legato.cli.watching import START, Gone, Lost, Opened, Watch
from legato.errors import BadInput, LegatoError, StoreUnavailable

COMMAND = re.compile(r"/[A-Za-z]+(\s|$)")
LEAVE = ("/quit", "/exit")
NAMING = re.compile(r"/(?:resume|bind)\s+(.*)$", re.DOTALL | re.IGNORECASE)
WISH = re.compile(r"/model(?:\s+(.*?))?\s*", re.DOTALL | re.IGNORECASE)
HELP = re.compile(r"/help\s*", re.IGNORECASE)
OURS = "\n- `/quit`: leave this chat\n- `//text`: say a text that begins with a slash"
RECAP_ITEMS = 100
PATIENCE = 60.0
SECOND = 1.0
WAITING = 3
"""Messages on their way that are shown."""

Row = dict[str, Any]


def run_chat(home: Path | None, *, last: bool, resume: str | None, model: str | None) -> None:
    """Talk until Ctrl-D."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInput("A chat needs a terminal. To ask one thing from a script: legato ask TEXT")
    way = Way(home, click.echo, "chat", PATIENCE)
    try:
        client = way.find()
        commands = client.get("/v1/commands")["data"]
        conversation = (
            care.newest(client)["id"] if last else care.resolve(client, resume)["id"] if resume is not None else None
        )
        chat = Chat(way, client, model, commands)
        asyncio.run(chat.run(conversation))
        for line in chat.farewell():
            click.echo(line)
    finally:
        way.close()


class Chat:
    """A talk: where it goes on, what was sent, and what is under way."""

    def __init__(self, way: Way, client: Client, model: str | None, commands: list[Row]) -> None:
        self._way, self._line, self._model = way, Line(way, client), model
        self._paint = Paint()
        dumb = os.environ.get("TERM", "dumb") in ("dumb", "unknown")
        self._screen: Teletype | Screen = Teletype(self) if dumb else Screen(self, way.home / "history")
        self._telling = self._new_telling()
        self._watch: Watch | None = None
        self._told: asyncio.Task[None] | None = None
        self._conversation: str | None = None
        self._titled: str | None = None  # the title that a new conversation will get
        self._chosen = False  # whether a new conversation will keep the model
        self._waiting: list[Sent] = []
        self._mine: set[str] = set()
        self._outbox: asyncio.Queue[Sent] = asyncio.Queue()
        self._standing = Standing(model=model or "")
        self._commands = commands
        self._names: list[tuple[str, str]] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, conversation: str | None) -> None:
        """Until the person leaves."""
        self._way.hush()
        self._spawn(self._send_all())
        self._spawn(self._tick())
        self._spawn(self._learn_names())
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._screen.leave)
        if conversation is not None:
            self._go_on_in(conversation, None)
        else:
            self._screen.print(
                self._paint.dim("A new conversation. Enter sends, Alt-Enter or Ctrl-J begins a new line,")
            )
            self._screen.print(self._paint.dim("Ctrl-C stops an answer, Ctrl-D leaves, /help tells the rest."))
        try:
            await self._screen.run()
        finally:
            if self._watch is not None:
                self._watch.stop()
            for task in self._tasks:
                task.cancel()

    async def _tick(self) -> None:
        """Let the status line count the seconds of a turn; an idle chat does nothing."""
        while True:
            await asyncio.sleep(SECOND)
            if self._telling.turn is not None or self._line.lost:
                self._screen.changed()

    def farewell(self) -> list[str]:
        """What the person needs to know on leaving."""
        lines = [f"Not sent: {sent.text}" for sent in self._waiting if sent.turn is None]
        if self._conversation is not None:
            name = self._standing.name
            known = name if name and plain(name) == name and name[0] != "-" else self._conversation
            lines.append(f"Come back with: legato -r {shlex.quote(known)}")
        if self._telling.turn is not None and self._way.owner:
            lines.append("The answer is being finished; Ctrl-C leaves it for the next time.")
        return lines

    # -- what the screen asks for

    def typed(self, text: str) -> None:
        if text.split()[0].lower() in LEAVE:
            self._screen.leave()
            return
        command = COMMAND.match(text) is not None
        sent = Sent(text.removeprefix("/") if text.startswith("//") else text, command)
        self._waiting.append(sent)
        self._outbox.put_nowait(sent)

    def interrupted(self, text: str) -> bool:
        turn = self._telling.turn
        if turn is not None:
            self._spawn(self._stop(turn))
            return True
        if not text:
            self._screen.print(["", *self._paint.dim("Ctrl-D leaves.")])
        return False

    def live(self, most: int) -> list[str]:
        width = self._paint.width - 4
        waiting = [
            row for sent in self._waiting[:WAITING] for row in self._paint.dim(f"{OWN} {short(sent.text, width)}")
        ]
        if len(self._waiting) > WAITING:
            waiting += self._paint.dim(f"  … and {len(self._waiting) - WAITING} more")
        rows = self._telling.live(max(most - len(waiting), 1))
        return [*rows, *([""] if waiting else []), *waiting]

    def status(self) -> str:
        doing = self._line.lost
        if not doing and self._telling.turn is not None:
            doing = f"answering {time.monotonic() - self._telling.since:.0f}s · Ctrl-C stops"
        elif not doing and self._waiting:
            doing = "sending"
        return self._standing.shown(doing, self._paint.width - 4)

    def offers(self, text: str) -> Iterable[Offer]:
        if naming := NAMING.match(text):
            begun = naming[1].lower()
            for name, meaning in self._names:
                if begun in name.lower():
                    yield name, meaning, len(begun)
        elif re.fullmatch(r"/[A-Za-z]*", text):
            for row in [*self._commands, {"name": "quit", "help": "Leave."}]:
                if row["name"].startswith(text[1:].lower()):
                    yield f"/{row['name']}", row["help"], len(text)

    def resized(self, width: int) -> None:
        self._paint.width = width

    # -- sending

    async def _send_all(self) -> None:
        """One thing after the other, in the order in which they were typed."""
        while True:
            sent = await self._outbox.get()
            try:
                await (self._command(sent) if sent.command else self._say(sent))
            except LegatoError as error:
                self._done_with(sent)
                self._screen.print(self._telling.said(sent.text, OWN))
                self._tell_refusal(error.message)
            self._screen.changed()

    async def _say(self, sent: "Sent") -> None:
        body: Row = {"input": sent.text, "background": True}
        if self._model:
            body["model"] = self._model
        if self._conversation is not None:
            body["conversation"] = self._conversation
        answer = await self._line.post("/v1/responses", body, sent.key)
        sent.turn = answer["id"]
        self._mine.add(answer["id"])
        self._standing.model = answer["model"]
        if self._model and self._model != answer["model"]:
            self._tell_refusal(f"nobody is called {self._model!r}; {answer['model']} answers")
            self._model = None
        if self._conversation is None:
            self._go_on_in(answer["conversation"]["id"], START)
            if self._chosen and self._model:
                chosen = {"text": f"/model {self._model}", "conversation": self._conversation}
                await self._line.post("/v1/commands", chosen, uuid.uuid4().hex)
                self._model, self._chosen = None, False
            if self._titled:
                self._spawn(self._entitle(answer["conversation"]["id"], self._titled))
                self._titled = None

    async def _entitle(self, conversation: str, title: str) -> None:
        await self._line.ask(lambda client: client.patch(path_of("api", "sessions", conversation), {"title": title}))
        await self._learn()

    async def _command(self, sent: "Sent") -> None:
        wish = WISH.fullmatch(sent.text)
        if wish and (told := await self._wished(wish[1])):
            self._done_with(sent)
            self._screen.print([*self._telling.said(sent.text, OWN), "", *self._paint.markdown(plain(told))])
            return
        asked = {"text": sent.text, "conversation": self._conversation}
        answer = await self._line.post("/v1/commands", asked, sent.key)
        self._done_with(sent)
        if wish and wish[1]:
            self._model, self._standing.model = None, wish[1]  # who was wished for at the start answers no longer
        self._spawn(self._learn_names())
        self._screen.print(self._telling.said(sent.text, OWN))
        if HELP.fullmatch(sent.text):
            answer["text"] += OURS
        if answer["text"]:
            self._screen.print(["", *self._paint.markdown(plain(answer["text"]))])
        if answer["turn"]:
            self._mine.add(answer["turn"])
        if answer["fresh"]:
            self._start_anew(answer["title"])
        elif answer["conversation"] is not None and answer["conversation"]["id"] != self._conversation:
            self._go_on_in(answer["conversation"]["id"], None)
        else:
            self._spawn(self._learn())

    async def _wished(self, name: str | None) -> str:
        """Who answers, where only this chat knows: by `-m`, or before there is a conversation that can keep it."""
        if self._model is None if not name else self._conversation is not None:
            return ""
        names = [row["id"] for row in (await self._line.ask(lambda client: client.get("/v1/models")))["data"]]
        if not name:
            return f"{self._model} answers here. There are: {', '.join(names)}."
        if name not in names:
            return ""  # the gateway says which is near
        self._model = self._standing.model = name
        self._chosen = True
        return f"{name} answers here from now on."

    async def _stop(self, turn: str) -> None:
        await self._line.ask(lambda client: client.post(path_of("v1", "responses", turn, "cancel")))

    def _done_with(self, sent: "Sent") -> None:
        if sent in self._waiting:
            self._waiting.remove(sent)

    def _own(self, turn: str, text: str) -> bool:
        """Whether a turn was sent from here; it may be told before the answer to the sending is back."""
        for sent in self._waiting:
            if sent.turn == turn or (sent.turn is None and not sent.command and sent.text == text):
                self._waiting.remove(sent)
                return True
        return turn in self._mine or any(sent.command for sent in self._waiting)  # which may have started it

    # -- where the talk goes on

    def _go_on_in(self, conversation: str, after: str | None) -> None:
        """Watch a conversation: one that was begun here from its start, another from what is under way in it."""
        self._leave()
        if after is None:
            if self._chosen:
                self._model, self._chosen = None, False  # for the conversation that did not begin
            self._standing = Standing(model=self._model or "")
        self._conversation = conversation
        self._watch = Watch(self._line.find, conversation, after)
        self._told = self._spawn(self._tell(self._watch, joining=after is None))

    def _start_anew(self, title: str | None) -> None:
        self._leave()
        self._conversation, self._titled = None, title
        self._standing = Standing(title or "", self._model or "")

    def _leave(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        if self._told is not None:
            self._told.cancel()
        self._watch = self._told = None
        self._telling = self._new_telling()
        self._waiting = [sent for sent in self._waiting if sent.turn is None]
        self._line.lost = ""

    async def _tell(self, watch: Watch, joining: bool) -> None:
        """Show what happens in a conversation, as long as it is this one."""
        self._spawn(self._learn())
        while True:
            news = await watch.news.get()
            match news:
                case Opened():
                    self._line.lost = ""
                    if joining:
                        joining = not await self._recapped(watch.conversation)
                case Lost(why=why):
                    self._line.broken(why)
                case Gone(why=why):
                    self._tell_refusal(why)
                    self._start_anew(None)
                    return
                case _:
                    for event in news:
                        self._screen.print(self._telling.take(event))
                        if event["type"] == "turn.ended":
                            self._spawn(self._learn(event["turn"]))
            self._screen.changed()

    async def _recapped(self, conversation: str) -> bool:
        """Show what was said before. The stream is open already, so nothing falls in between; what it tells again is
        known by its items. False when the gateway went away meanwhile."""
        path = path_of("v1", "conversations", conversation, "items")
        try:
            page = await self._line.ask(lambda client: client.get(path, order="desc", limit=RECAP_ITEMS))
            row = await described(self._line, conversation)
        except StoreUnavailable as error:
            self._line.broken(error.message)
            return False
        items = page["data"][::-1]
        self._telling = self._new_telling(frozenset(item["id"] for item in items))
        self._screen.print(["", *self._telling.recap(items, care.called(row), row["updated_at"])])
        return True

    def _new_telling(self, known: frozenset[str] = frozenset()) -> Telling:
        return Telling(self._paint, self._own, known)

    # -- what is known

    async def _learn(self, turn: str | None = None) -> None:
        if self._conversation is not None:
            await self._standing.learn(self._line, self._conversation, turn)
            self._screen.changed()

    async def _learn_names(self) -> None:
        """What can be completed."""
        try:
            rows = (await self._line.ask(lambda client: client.get("/v1/conversations", limit=100)))["data"]
        except StoreUnavailable:
            return  # those from before will do
        named = [(row["name"] or row["title"], row) for row in rows if row["name"] or row["title"]]
        self._names = [(plain(name), short(row["title"] or row["preview"] or row["id"], 50)) for name, row in named]

    # -- what goes wrong

    def _tell_refusal(self, why: str) -> None:
        self._screen.print(["", *self._paint.text(("✗ ", "bold red"), (plain(why), "red"), indent=2)])

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A fault of ours is told, not kept."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._tell_refusal(error.message if isinstance(error, LegatoError) else f"A fault of the chat: {error!r}")


class Sent:
    """Something that was typed. Its key makes it happen once."""

    def __init__(self, text: str, command: bool) -> None:
        self.text, self.command = text, command
        self.key = uuid.uuid4().hex
        self.turn: str | None = None
