"""Slash commands: one registry for the terminal and for every channel, because they are carried out here.

A command is said in a talk and answered in it; nothing of it is sent to a model. Some move the talk to another
conversation (`/new`, `/resume`, `/fork`): the reply says where it goes on, and whoever asked re-points itself. One that
is sent again under its key is not carried out again, and says what it said.
"""

import difflib
import re
from collections.abc import Awaitable, Callable

from msgspec import Struct, structs

from legato.domain.conversations import Conversation, Described
from legato.domain.entries import Draft, Message, Text, draft
from legato.domain.grams import shortened, snippet
from legato.domain.handles import ById, Slug, parse_name
from legato.domain.ids import PrincipalId, TurnId
from legato.domain.turns import Busy, Dedup, Input, Submission, Turn
from legato.engine.gateway import Gateway
from legato.engine.roster import Cast
from legato.errors import BadInput, NotFound, UnknownHandle

SHOWN = 10  # how many conversations, hits or names are listed

_COMMAND = re.compile(r"/([A-Za-z]+)(?:\s+(.*))?\s*\Z", re.DOTALL)


class UnknownCommand(NotFound):
    """There is no such command."""

    code = "command_not_found"


class Reply(Struct, frozen=True):
    """What a command says. The talk goes on in `conversation`, or, when it is `fresh`, in one that the next message
    begins, with the `title`. `turn` is one that the command has started."""

    text: str
    conversation: Conversation | None = None
    fresh: bool = False
    title: str | None = None
    turn: TurnId | None = None


class Desk(Struct, frozen=True):
    """Who says a command, and in which conversation."""

    gateway: Gateway
    principal: PrincipalId
    conversation: Conversation | None
    dedup: Dedup | None = None

    @property
    def here(self) -> Conversation:
        if self.conversation is None:
            raise BadInput("There is no conversation here yet; say something first, or /resume one.")
        return self.conversation

    @property
    def cast(self) -> Cast:
        """Who answers here."""
        return self.gateway.roster.cast(self.conversation.chosen if self.conversation else None)

    def stays(self, text: str, turn: Turn | None = None) -> Reply:
        return Reply(text, self.conversation, turn=turn.id if turn else None)

    async def done(self) -> Turn | None:
        """The turn by which this very command was carried out before."""
        turn = await self.gateway.admitted(self.principal, self.dedup)
        if turn is None or turn.kind == "talk":
            return turn
        turn = await self.gateway.ended(turn)
        return turn if turn.status == "done" else None

    async def submit(self, drafts: tuple[Draft, ...], busy: Busy = "queue", given: Input | None = None) -> Turn:
        submission = Submission(
            principal=self.principal,
            target=ById(self.here.id),
            input=structs.replace(given or Input(), drafts=drafts),
            busy=busy,
            dedup_key=self.dedup.key if self.dedup else None,
            request_hash=self.dedup.request_hash if self.dedup else None,
        )
        return await self.gateway.submit(submission)


Handler = Callable[[Desk, str], Awaitable[Reply]]


class Command(Struct, frozen=True):
    """A command: its name, what may follow it, what it does."""

    name: str
    takes: str
    help: str
    handler: Handler

    @property
    def usage(self) -> str:
        return f"/{self.name} {self.takes}".rstrip()


def parse(text: str) -> tuple[str, str] | None:
    """The name and the argument of a command; None when the text is no command. `/usr/bin` is none; `/Help` is one,
    for phones begin a message with a capital letter."""
    match = _COMMAND.match(text.strip())
    return (match[1].lower(), (match[2] or "").strip()) if match else None


async def run(desk: Desk, text: str) -> Reply:
    """Carry a command out."""
    name, argument = parse(text) or ("", "")
    command = COMMANDS.get(name)
    if command is None:
        near = difflib.get_close_matches(name, COMMANDS, 1, 0.5)
        hint = f"Did you mean /{near[0]}?" if near else "/help lists those there are."
        raise UnknownCommand(f"There is no command {text.split(maxsplit=1)[0] if text.split() else '/'!r}. {hint}")
    return await command.handler(desk, argument)


# -- where the talk goes on


async def _new(desk: Desk, title: str) -> Reply:
    what = f"The next message begins a new conversation{f', {title!r}' if title else ''}."
    back = " This one stays; /resume comes back to it." if desk.conversation else ""
    return Reply(what + back, fresh=True, title=title or None)


async def _reset(desk: Desk, argument: str) -> Reply:
    return await _new(desk, "")


async def _resume(desk: Desk, what: str) -> Reply:
    if not what:
        recent = await desk.gateway.conversations(desk.principal, 2)
        other = [c for c in recent if desk.conversation is None or c.id != desk.conversation.id]
        if not other:
            raise UnknownHandle("There is no other conversation to go back to.")
        return await _gone_to(desk, other[0])
    meant = await desk.gateway.meant(desk.principal, what, SHOWN)
    if meant.match in ("near", "none"):
        near = f" The nearest are:\n\n{_listed(meant.found)}" if meant.found else ""
        raise UnknownHandle(f"There is no conversation {what!r}.{near}")
    if len(meant.found) > 1:
        choose = "/resume one of them by its id or its whole name"
        return desk.stays(f"{what!r} may mean any of these; {choose}:\n\n{_listed(meant.found)}")
    return await _gone_to(desk, meant.found[0].conversation)


async def _gone_to(desk: Desk, conversation: Conversation) -> Reply:
    [row] = await desk.gateway.described([conversation])
    return Reply(f"Back in {_named(row)}.", conversation)


async def _fork(desk: Desk, title: str) -> Reply:
    made = await desk.gateway.fork(desk.principal, ById(desk.here.id), dedup=desk.dedup)
    forked = made.conversation
    if title:
        once = desk.dedup.part("title") if desk.dedup is not None else None
        forked = await desk.gateway.rename(desk.principal, ById(forked.id), title, dedup=once)
    return Reply(f"This is a fork; what is said now is not said there. The other is {desk.here.id}.", forked)


async def _bind(desk: Desk, name: str) -> Reply:
    if not name:
        known = [value for scheme, value in await desk.gateway.names(desk.here) if scheme == "slug"]
        return desk.stays(f"Known as {', '.join(known)}." if known else "It has no name yet: /bind NAME gives it one.")
    handle = parse_name(name, param="name")
    try:
        return await _gone_to(desk, await desk.gateway.find(desk.principal, handle))
    except UnknownHandle:
        if not isinstance(handle, Slug) or not handle.creatable:
            raise
    await desk.gateway.bind(desk.principal, handle, ById(desk.here.id))
    return desk.stays(f"This conversation is now known as {name}, everywhere.")


# -- what is said


async def _undo(desk: Desk, argument: str) -> Reply:
    done = await desk.done()
    if done is None:
        said = await _last_said(desk)
        done = await desk.gateway.rewind(desk.principal, ById(desk.here.id), said.begun - 1, dedup=desk.dedup)
    return desk.stays(f"Taken back: {shortened(await desk.gateway.taken_back(done))!r} and what followed.")


async def _retry(desk: Desk, argument: str) -> Reply:
    if (done := await desk.done()) is not None:
        return desk.stays(f"Once more: {_input_of(done)!r}", done)
    said = await _last_said(desk)
    turn = await desk.gateway.submitted(desk.principal, said.turn_id)
    again = tuple(draft(d.body) for d in turn.input.drafts)
    given = structs.replace(turn.input, hides=((said.seq, said.last),), expects=None, usage=None)
    started = await desk.submit(again, given=given)
    return desk.stays(f"Once more: {_input_of(started)!r}", started)


class _Said(Struct, frozen=True):
    """The last thing that people see a person said: where its turn begins (which may hide an earlier try first), where
    it was said, and the last that came of it."""

    turn_id: TurnId
    begun: int
    seq: int
    last: int


async def _last_said(desk: Desk) -> _Said:
    if await desk.gateway.under_way(desk.here):
        raise BadInput("A turn is under way; /stop it first, or wait for its end.")
    entries = await desk.gateway.transcript(desk.principal, ById(desk.here.id))
    for entry in reversed(entries):
        if isinstance(entry.body, Message) and entry.body.role == "user":
            written = [e for e in entries if e.turn_id == entry.turn_id]
            first = next(e.seq for e in written if isinstance(e.body, Message))
            return _Said(entry.turn_id, written[0].seq, first, entries[-1].seq)
    raise BadInput("Nothing was said here yet.")


async def _stop(desk: Desk, argument: str) -> Reply:
    waiting = await desk.gateway.under_way(desk.here)
    if not await desk.gateway.repeated(desk.principal, desk.dedup):
        if not waiting:
            return desk.stays("Nothing runs here.")
        await desk.gateway.stop(desk.principal, waiting[0].id, dedup=desk.dedup)
    return desk.stays("Stopped; what was written stays." + (f" {len(waiting) - 1} wait." if len(waiting) > 1 else ""))


async def _queue(desk: Desk, text: str) -> Reply:
    if text:
        return desk.stays("", await desk.submit((_message(text),), "queue"))
    turns = await desk.gateway.under_way(desk.here)
    lines = [f"- {turn.status}: {_input_of(turn)}" for turn in turns if turn.kind == "talk"]
    return desk.stays("\n".join(lines) or "Nothing waits.")


async def _steer(desk: Desk, text: str) -> Reply:
    if not text:
        raise BadInput("Say what the turn under way should hear: /steer TEXT.")
    return desk.stays("", await desk.submit((_message(text),), "steer"))


def _message(text: str) -> Draft:
    return draft(Message("user", (Text(text),)))


def _input_of(turn: Turn) -> str:
    return shortened(" ".join(d.body.text for d in turn.input.drafts if isinstance(d.body, Message)))


# -- what the model sees


async def _compact(desk: Desk, focus: str) -> Reply:
    made = await desk.done()
    if made is None:
        made = await desk.gateway.summarise(desk.principal, ById(desk.here.id), focus=focus, dedup=desk.dedup)
    if made is None:
        return desk.stays("There is nothing to fold yet.")
    return desk.stays("The past is summarised for the model; nothing is lost, and /expand brings it back.")


async def _expand(desk: Desk, argument: str) -> Reply:
    if await desk.done() is None:
        position = await desk.gateway.summary_in_force(desk.here)
        if position is None:
            return desk.stays("No summary stands for anything here.")
        await desk.gateway.expand(desk.principal, ById(desk.here.id), position, dedup=desk.dedup)
    return desk.stays("The model sees the originals again.")


async def _model(desk: Desk, name: str) -> Reply:
    names = desk.gateway.roster.names
    if not name:
        return desk.stays(f"{desk.cast.name} answers here. There are: {', '.join(names)}.")
    if name not in names:
        near = difflib.get_close_matches(name, names, 1, 0.4)
        hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(names)}."
        raise BadInput(f"Nobody is called {name!r}. {hint}")
    made = await desk.gateway.change_settings(desk.principal, ById(desk.here.id), {"agent": name}, dedup=desk.dedup)
    return Reply(f"{name} answers here from now on.", made.conversation)


# -- what there is


async def _list(desk: Desk, query: str) -> Reply:
    found = await desk.gateway.conversations(desk.principal, SHOWN + 1, query=query or None)
    nothing = "Nothing was found." if query else "There is no conversation yet."
    more = "\n\nThere are more; `/list TEXT` finds those that contain a text." if len(found) > SHOWN else ""
    return desk.stays((_listed(await desk.gateway.described(found[:SHOWN])) or nothing) + more)


async def _title(desk: Desk, title: str) -> Reply:
    if not title:
        return desk.stays(desk.here.title or "It has no title yet: /title TEXT gives it one.")
    renamed = await desk.gateway.rename(desk.principal, ById(desk.here.id), title[:500], dedup=desk.dedup)
    return Reply(f"Called {title[:500]!r}.", renamed)


async def _status(desk: Desk, argument: str) -> Reply:
    here, cast = desk.here, desk.cast
    [row] = await desk.gateway.described([here])
    submission = Submission(principal=desk.principal, target=ById(here.id), input=Input())
    used, window = await desk.gateway.measure(submission, cast), await desk.gateway.window(cast)
    waiting = await desk.gateway.under_way(here)
    names = [value for scheme, value in await desk.gateway.names(here) if scheme == "slug"]
    lines = [
        f"- conversation: {_named(row)}",
        f"- names: {', '.join(names) or 'none'}",
        f"- answered by: {cast.name}",
        f"- context: {used:,} of {window:,} tokens ({100 * used / window:.0f} %)",
        f"- entries: {here.head_seq:,}",
        f"- under way: {f'{len(waiting)} ({waiting[0].status})' if waiting else 'nothing'}",
    ]
    return desk.stays("\n".join(lines))


async def _usage(desk: Desk, argument: str) -> Reply:
    used = await desk.gateway.usage(desk.here)
    cached = f" ({used.cached_tokens:,} of them cached)" if used.cached_tokens else ""
    return desk.stays(f"{used.input_tokens:,} tokens in{cached}, {used.output_tokens:,} out, summaries included.")


async def _search(desk: Desk, query: str) -> Reply:
    if not query:
        raise BadInput("Say what to look for: /search TEXT.")
    hits = await desk.gateway.search(desk.principal, query, SHOWN)
    lines = [f"- `{hit.conversation_id}` {snippet(hit.text, query)}" for hit in hits]
    return desk.stays("\n".join(lines) or "Nothing was found.")


async def _help(desk: Desk, name: str) -> Reply:
    if name and (command := COMMANDS.get(name.removeprefix("/"))):
        return desk.stays(f"`{command.usage}`: {command.help}")
    return desk.stays("\n".join(f"- `{command.usage}`: {command.help}" for command in COMMANDS.values()))


def _named(row: Described) -> str:
    return f"{shortened(row.called, 50)} (`{row.conversation.id}`)" if row.called else f"`{row.conversation.id}`"


def _listed(rows: list[Described]) -> str:
    return "\n".join(f"- {_named(row)}" for row in rows)


COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        Command("new", "[title]", "begin a new conversation; this one stays", _new),
        Command("reset", "", "the same, without a title", _reset),
        Command("resume", "[what]", "go on with another: an id, a name, a title, or the last one before this", _resume),
        Command("list", "[text]", "the newest conversations, or those that contain a text", _list),
        Command("title", "[text]", "call this conversation so", _title),
        Command("compact", "[focus]", "summarise the past for the model; nothing is lost", _compact),
        Command("expand", "", "show the model the originals again", _expand),
        Command("undo", "", "take back the last thing you said, and its answer", _undo),
        Command("retry", "", "ask the last thing once more", _retry),
        Command("fork", "[title]", "go on in a copy that begins here", _fork),
        Command("stop", "", "stop the turn under way; what was written stays", _stop),
        Command("status", "", "where you are, who answers, how full the context is", _status),
        Command("usage", "", "what this conversation has cost, in tokens", _usage),
        Command("search", "text", "find what was said, in any conversation", _search),
        Command("model", "[name]", "who answers here from now on", _model),
        Command("queue", "[text]", "say something after the turn under way; or see what waits", _queue),
        Command("steer", "text", "say something into the turn under way", _steer),
        Command("bind", "[name]", "go on in the conversation of that name; if there is none, call this one so", _bind),
        Command("help", "[command]", "this list", _help),
    )
}
"""Every command, in the order in which people learn them."""
