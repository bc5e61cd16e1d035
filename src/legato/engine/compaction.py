"""Compaction: a long past is told to the model as a summary, and nothing else changes.

A summary is made in the background after a turn, when the context has grown past a share of the model's window, and
inside a turn only where the request would not fit. It stands on the summary before it. No lease is held while the
model writes it: a short upkeep turn publishes it, unless another control came first. What was done to the outside
world is listed by us, not by the model: the newest calls one by one, as many as an eighth of the window holds.

A summary that fails leaves the view as it was, and a note that says why; the next try waits until the context has
grown. Meanwhile requests are trimmed without a model, so that every turn is answered.
"""

import asyncio
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing

from msgspec import Struct, structs

from legato.domain.entries import (
    AnyBody,
    Compaction,
    Draft,
    Entry,
    Message,
    Note,
    Pin,
    Text,
    ToolCall,
    ToolResult,
    View,
    draft,
)
from legato.domain.folding import EXCHANGES, Fold, actions, fold, trim, whole_places
from legato.domain.ids import ConversationId
from legato.domain.turns import Usage
from legato.engine import tokens, windows
from legato.engine.protocols import Finished, ModelRequest, Sized, TextChunk
from legato.engine.roster import Cast, Roster
from legato.errors import ContextTooLarge, LegatoError, ModelUnavailable
from legato.logs import logger

FAILED = "compaction failed"
LEFT_OUT = "left out"
GROWTH = 0.1  # of the window: so much must be said before a failed summary is tried again
SHORT = 200  # tokens: of less than that a summary may well be longer
ACTIONS = 8  # a part of the window, for what was done: the list grows with every call, and the window does not
LEAST = 1_000  # tokens that every model takes: whoever refuses less means something else
REMEMBERED = 3_600.0  # seconds: a server that was down, or a smaller one that stood in, is not believed for ever
EARLIER = "earlier calls, which the log alone has"
LONGEST_OUTPUT = 4_000  # characters of one tool's output that the summariser reads

INSTRUCTIONS = """\
You keep the memory of a conversation. Write what someone must know to go on with it without having read it. Keep, in
few words and in the language of the conversation: what the user wants; decisions and their reasons; open tasks and
promises; names, numbers, dates, files and addresses exactly as they were said; what was found out; what the user likes
and dislikes. Leave out greetings and what has been superseded. Where a summary of an earlier part is given, carry on
everything in it that still matters. Write only the summary."""

_TIMES = re.compile(r" \(× (\d+)\)$")


class CompactionSettings(Struct, frozen=True):
    share: float = 0.75  # of the window, at which a summary is made
    model: str = ""  # who writes it; the agent's own model when empty
    timeout: float = 120.0


class SummaryFailed(ModelUnavailable):
    """No usable summary was written."""

    code = "summary_failed"


class Compacted(Struct, frozen=True):
    """What to write into the log: a compaction with its pins."""

    drafts: tuple[Draft, ...]
    usage: Usage


class Compactor:
    """Knows how much a model takes, and makes summaries."""

    def __init__(self, roster: Roster, settings: CompactionSettings) -> None:
        self._roster, self._settings = roster, settings
        self._factors: dict[str, float] = {}  # what a provider counts, over what we count
        self._found: dict[str, tuple[int, float]] = {}  # windows told by a provider or refused by it, and when

    # -- the budget

    def is_small(self, cast: Cast, request: ModelRequest, threshold: int | None) -> bool:
        """Whether a request is surely far from any limit; most are, and this is all that it costs them."""
        window = self._known(cast.model_name) or self._roster.window(cast) or windows.DEFAULT
        due = min(threshold or window, int(window * self._settings.share))
        return tokens.at_most(request) * self._factors.get(cast.model_name, 1.0) <= due

    async def window(self, cast: Cast) -> int:
        """How many tokens the model takes: as configured, as its server tells, as its name tells, or a safe guess."""
        name = cast.model_name
        found = self._known(name)
        if found is None:
            told = self._roster.window(cast)
            if told is None and isinstance(cast.model, Sized):
                told = await cast.model.window(cast.upstream)
            told = told or windows.known(name)
            if told is None:
                logger.warning(
                    f"how much '{name}' takes is unknown; set models.{cast.agent.model}.context_window",
                    assumed=windows.DEFAULT,
                )
            found = told or windows.DEFAULT
            self._found[name] = found, time.monotonic()
        return found

    def _known(self, name: str) -> int | None:
        window, since = self._found.get(name, (None, 0.0))
        return window if time.monotonic() - since < REMEMBERED else None

    async def budget(self, cast: Cast, threshold: int | None = None, answer: int = 0) -> tuple[int, int]:
        """The tokens at which a summary is due, and the most that is ever sent: an answer must fit as well."""
        window = await self.window(cast)
        most = window - max(min(window // 5, 8_192), answer)
        return min(threshold or int(window * self._settings.share), most), most

    def size(self, request: ModelRequest, cast: Cast) -> int:
        """How many tokens a request has, as far as we know this provider."""
        return int(tokens.of_request(request) * self._factors.get(cast.model_name, 1.0))

    def learn(self, cast: Cast, size: int, counted: int) -> None:
        """The provider has counted a request that we took to be of this size."""
        if size > 0 and counted > 0:
            factor = self._factors.get(cast.model_name, 1.0)
            self._factors[cast.model_name] = min(3.0, max(1.0, factor * counted / size))

    async def refused(self, cast: Cast, request: ModelRequest) -> int | None:
        """The provider says that a request is too long, though we thought that it fits. Returns how many tokens it must
        leave for its answer, where that explains it: the model takes as much as we thought, and nobody else is sent
        less. Otherwise the model takes less, and there is nothing to leave. None where nothing can be done."""
        window, size = await self.window(cast), self.size(request, cast)
        answer = request.params.get("max_output_tokens")
        if isinstance(answer, int) and size + answer > window:
            return answer if answer <= window - LEAST else None
        if size >= LEAST:
            self._found[cast.model_name] = max(LEAST, min(window, int(size * 0.8))), time.monotonic()
        return 0

    # -- a summary

    def plan(self, view: View, keep: int, *, exchanges: int = EXCHANGES) -> Fold | None:
        """What a summary would stand for now."""
        after = view.summary.upto if view.summary is not None else 0
        return fold(view.entries, after, tokens.of_body, keep, exchanges, view.seen.kept)

    async def worth_trying(self, view: View, cast: Cast) -> bool:
        """Whether enough was said since a summary failed."""
        failed = [e.seq for e in view.entries if isinstance(e.body, Note) and e.body.reason == FAILED]
        if not failed:
            return True
        grown = sum(tokens.of_body(e.body) for e in view.entries if e.seq > failed[-1])
        return grown >= GROWTH * await self.window(cast)

    async def compact(self, cast: Cast, view: View, plan: Fold, *, why: str, focus: str = "") -> Compacted:
        """Have a summary made, group by group where the past is longer than the writer's window. What comes before a
        group that fails is kept. Fails with `SummaryFailed` where nothing is."""
        writer = self._roster.cast(self._settings.model) if self._settings.model else cast
        window = await self.window(writer)
        earlier = view.summary
        text = earlier.summary if earlier is not None else ""
        before, upto, usage = tokens.count(text), 0, Usage()
        for group in _groups(plan.entries, room := int(window * 0.4)):
            try:
                text, spent = await self._extended(writer, text, group, room, window // 4, focus)
            except SummaryFailed as error:
                if upto == 0:
                    raise
                logger.info("summary of a part only", error=error.message)
                break
            usage += spent
            upto = group[-1].seq
        folded = [entry for entry in plan.entries if entry.seq <= upto]
        before += sum(tokens.of_body(entry.body) for entry in folded)
        after = tokens.count(text)
        if after >= before >= SHORT:
            raise SummaryFailed(f"The summary has {after} tokens, what it stands for {before}.")
        done = (*(earlier.actions if earlier is not None else ()), *actions(folded))
        left = [entry.seq for entry in plan.entries if entry.seq > upto]
        body = Compaction(
            max(upto, earlier.upto if earlier is not None else 0) if left else plan.upto,
            text,
            by=self._settings.model or cast.name,
            why=why,
            actions=_fitting(_merged(done), await self.window(cast) // ACTIONS),
            before=before,
            after=after,
        )
        pins = [draft(Pin(seq, with_summary=True)) for seq in (*left, *plan.pins) if seq <= body.upto]
        return Compacted((draft(body), *pins), usage)

    async def _extended(
        self, writer: Cast, text: str, group: Sequence[Entry], room: int, longest: int, focus: str
    ) -> tuple[str, Usage]:
        """A summary of what `text` sums up and of a group of entries."""
        lines = [line for entry in group if (line := _line(entry.body)) is not None]
        if tokens.count(text) > longest:
            lines, text = [f"summary of what came before: {text}", *lines], ""
        usage = Usage()
        for piece in _pieces(lines, room):
            past = f"Summary of what came before:\n{text}\n\n" if text else ""
            task = f"{past}The conversation:\n{piece}\n\nWrite the summary."
            if focus:
                task += f" Pay special attention to: {focus}"
            request = ModelRequest(
                conversation_id=ConversationId(""),
                instructions=INSTRUCTIONS,
                tools=(),
                items=(Message("user", (Text(task),)),),
                params={"max_output_tokens": longest},
                model=writer.upstream,
            )
            text, spent = await self._asked(writer, request)
            usage += spent
            if (length := tokens.count(text)) > longest:
                raise SummaryFailed(f"The summary has {length} tokens, more than {longest}.")
        return text, usage

    async def _asked(self, writer: Cast, request: ModelRequest) -> tuple[str, Usage]:
        said: list[str] = []
        usage = Usage()
        try:
            async with asyncio.timeout(self._settings.timeout), aclosing(writer.model.stream(request)) as events:
                async for event in events:
                    if isinstance(event, TextChunk):
                        said.append(event.text)
                    elif isinstance(event, Finished):
                        usage = event.usage
        except TimeoutError as error:
            raise SummaryFailed(f"The summary took longer than {self._settings.timeout:g} s.") from error
        except LegatoError as error:
            raise SummaryFailed(f"The summary failed: {error.message}") from error
        text = "".join(said).strip()
        if not text:
            raise SummaryFailed("The summary is empty.")
        if _is_garbage(text):
            raise SummaryFailed("The summary is no text.")
        return text, usage

    # -- without a summary

    def trimmed(self, cast: Cast, request: ModelRequest, most: int) -> tuple[ModelRequest, str]:
        """A request that fits, and what was left out of it in words."""
        factor = self._factors.get(cast.model_name, 1.0)
        around = tokens.of_request(structs.replace(request, items=()))
        room = int(most / factor) - around
        found = trim(request.items, tokens.of_body, room, request.conversation_id)
        if found is None:
            raise ContextTooLarge(
                f"The latest input alone has more tokens than the model takes ({most}). Send less, or choose a model "
                f"with a larger window."
            )
        words = f"{found.outputs} tool outputs and {found.messages} earlier items were left out to fit {most} tokens."
        if found.cut:
            words += " What stands for the past was cut."
        return structs.replace(request, items=found.items), words


def failure_note(error: SummaryFailed) -> Draft:
    return draft(Note(f"The past was not summarised: {error.message}", reason=FAILED))


def _merged(lines: Iterable[str]) -> tuple[str, ...]:
    """The same line in a row is told once, with its number."""
    merged: list[tuple[str, int]] = []
    for text, number in map(_counted, lines):
        if merged and merged[-1][0] == text:
            merged[-1] = text, merged[-1][1] + number
        else:
            merged.append((text, number))
    return tuple(text if number == 1 else f"{text} (× {number})" for text, number in merged)


def _counted(line: str) -> tuple[str, int]:
    found = _TIMES.search(line)
    return (line[: found.start()], int(found[1])) if found else (line, 1)


def _fitting(lines: Sequence[str], room: int) -> tuple[str, ...]:
    """The newest lines that fit; of those before them, how many there were."""
    first = len(lines)
    while first and (room := room - tokens.count(lines[first - 1]) - 2) >= 0:
        first -= 1
    return _merged([*(f"{EARLIER} (× {_counted(line)[1]})" for line in lines[:first]), *lines[first:]])


def _groups(entries: Sequence[Entry], room: int) -> Iterator[Sequence[Entry]]:
    """Entries that go together into one summary; no pair is separated, even if that makes a group too large."""
    whole = set(whole_places(entries))
    start, size = 0, 0
    for place, entry in enumerate(entries):
        length = tokens.count(_line(entry.body) or "")
        if place > start and size + length > room and place in whole:
            yield entries[start:place]
            start, size = place, 0
        size += length
    if entries[start:]:
        yield entries[start:]


def _pieces(lines: Iterable[str], room: int) -> Iterator[str]:
    """The lines, together in pieces that fit."""
    piece: list[str] = []
    size = 0
    for line in lines:
        length = tokens.count(line)
        if piece and size + length > room:
            yield "\n".join(piece)
            piece, size = [], 0
        while length > room:  # one line longer than a piece
            part = line[: max(1, len(line) * room // (2 * length))]
            yield part
            line = line[len(part) :]
            length = tokens.count(line)
        piece.append(line)
        size += length + 1
    if piece:
        yield "\n".join(piece)


def _line(body: AnyBody) -> str | None:
    match body:
        case Message(role=role, text=text):
            return f"{role}: {text}"
        case ToolCall(name=name, arguments=arguments):
            return f"called {name} with {arguments}"
        case ToolResult(output=output):
            return f"result: {output if len(output) <= LONGEST_OUTPUT else output[:LONGEST_OUTPUT] + ' …'}"
        case _:
            return None


def _is_garbage(text: str) -> bool:
    """Whether a text has hardly any letters, or says one word over and over."""
    words = text.split()
    letters = sum(character.isalnum() for character in text)
    return letters < 0.3 * len(text) or (len(words) > 50 and len(set(words)) < 0.05 * len(words))
