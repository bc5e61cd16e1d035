"""Commands that look after conversations and keys. Each says one thing to the gateway and prints what it answers."""

import json
import re
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import click

from legato.cli.client import CHUNK, Client, Refused, gateway, path_of
from legato.cli.output import check_free
from legato.cli.plain import one_line, shown
from legato.errors import BadInput, StoreUnavailable, UnknownHandle
from legato.store.files import written

Row = dict[str, Any]

SHOWN, MOST = 50, 1_000_000
LONGEST = 500
"""Characters of a title."""

NAMED = 5
"""Damaged lines that are told one by one."""


def ask(home: Path | None, text: str, *, last: bool, resume: str | None, model: str | None, as_json: bool) -> None:
    """One turn; the answer alone on standard output."""
    if not text.strip():
        raise BadInput("There is nothing to ask. Give a text, or send one on standard input.")
    with gateway(home) as client:
        body: Row = {"input": text} | ({"model": model} if model else {})
        if last or resume is not None:
            body["conversation"] = newest(client)["id"] if resume is None else resolve(client, resume)["id"]
        if as_json:
            answered = client.post("/v1/responses", body)
            _print(answered)
        else:
            answered = _streamed(client, body)
    if model and answered["model"] != model:
        click.echo(f"legato: nobody is called {model!r}; {answered['model']} answered", err=True)
    if answered["status"] != "completed":
        click.echo(f"legato: {_why(answered)}", err=True)
        sys.exit(1)


def _streamed(client: Client, body: Row) -> Row:
    """Print an answer as it comes, a blank line between two messages of it."""
    answered: Row = {}
    begun = False
    try:
        for event in client.events("/v1/responses", {**body, "stream": True}):
            if event["type"] in ("response.output_text.delta", "response.refusal.delta"):
                click.echo(shown(event["delta"]), nl=False)
                sys.stdout.flush()
                begun = True
            elif event["type"] == "response.output_item.added" and event["item"]["type"] == "message" and begun:
                click.echo("\n")
            elif "response" in event:
                answered = event["response"]
    except KeyboardInterrupt:
        if answered:
            client.post(path_of("v1", "responses", answered["id"], "cancel"))
        raise
    if begun:
        click.echo()
    if not answered:
        raise StoreUnavailable(f"The gateway at {client.url} went before it answered; see what it took with: legato ls")
    return answered


def _why(response: Row) -> str:
    """Why there is no whole answer."""
    if response["error"]:
        return str(response["error"]["message"])
    if response["status"] == "incomplete":
        return f"The answer is not whole: {response['incomplete_details']['reason']}."
    if response["status"] in UNDER_WAY:
        place = response["conversation"]["id"]
        return f"The connection broke. The turn goes on when the gateway runs; see it with: legato show {place}"
    return "The answer was stopped."


UNDER_WAY = ("queued", "in_progress")

TALK = "chat"
"""The kind of conversation that people have, as opposed to what programs run by themselves."""


def list_conversations(
    home: Path | None, *, limit: int | None, kind: str | None, everything: bool, query: str | None, as_json: bool
) -> None:
    with gateway(home) as client:
        most = limit or (MOST if everything else SHOWN)
        rows = _listed(client, most + 1, kind=kind or (None if everything else TALK), q=query)
        more, rows = len(rows) > most, rows[:most]
        ran = not (rows or query or kind or everything) and bool(_listed(client, 1))
    if as_json:
        _print(rows)
        return
    for row in rows:
        click.echo(f"{row['id']}  {_when(row['updated_at'])}  {called(row)}")
    if query or kind:
        nothing = "Nothing was found."
    elif ran:
        nothing = "Nobody has talked here yet; `legato ls --all` also lists what programs ran."
    else:
        nothing = "There is no conversation yet."
    if not rows:
        click.echo(nothing, err=True)
    if more:
        click.echo(f"These are the newest {most}; there are more, which -n NUMBER lists.", err=True)


def show(home: Path | None, what: str, *, as_json: bool) -> None:
    with gateway(home) as client:
        conversation = resolve(client, what)
        items = _items(client, conversation["id"])
    if as_json:
        _print({**conversation, "items": items})
        return
    for item in items:
        if item["type"] == "message":
            who = item["role"] + (" (cut off)" if item["status"] == "incomplete" else "")
            click.echo(click.style(f"{who}:", bold=True) + f" {shown(_text(item['content']))}\n")
        elif item["type"] in ("function_call", "custom_tool_call"):
            given = item["arguments"] if "arguments" in item else item["input"]
            click.echo(click.style(f"  called {item['name']} {shown(given)}", dim=True))
        elif item["type"] in ("function_call_output", "custom_tool_call_output"):
            click.echo(click.style(f"  → {shown(_text(item['output']))}", dim=True))
        elif item["type"] == "compaction":
            click.echo(click.style(f"  [summarised: {shown(item['encrypted_content'])}]\n", dim=True))


def _text(content: str | list[Row]) -> str:
    """What is said, with a word for each thing that is no text."""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", part.get("refusal", f"[{part['type']}]"))) for part in content)


def search(home: Path | None, query: str, *, limit: int, as_json: bool) -> None:
    with gateway(home) as client:
        hits = client.get("/v1/search", q=query, limit=min(limit + 1, 100))["data"]
    more, hits = len(hits) > limit, hits[:limit]
    if as_json:
        _print(hits)
        return
    for hit in hits:
        click.echo(f"{hit['conversation']}  {_when(hit['created_at'])}  {one_line(hit['snippet'])}")
    if not hits:
        click.echo("Nothing was found.", err=True)
    if more:
        click.echo(f"These are the newest {limit}; there are more, which -n NUMBER lists.", err=True)


def rename(home: Path | None, what: str, title: str) -> None:
    if len(title) > LONGEST:
        raise BadInput(f"A title has at most {LONGEST} characters; this one has {len(title)}.")
    with gateway(home) as client:
        conversation = resolve(client, what)
        client.patch(path_of("api", "sessions", conversation["id"]), {"title": title})
    click.echo(f"{conversation['id']} {f'is now called {title!r}' if title else 'has no title any more'}.")


def remove(home: Path | None, what: str) -> None:
    with gateway(home) as client:
        conversation, whole = _meant(client, what)
        if not whole:
            if not sys.stdin.isatty():
                raise BadInput(_only_begins(what, conversation))
            click.confirm(f"{_choices([conversation])}\nPut it into the trash", abort=True, err=True)
        client.delete(path_of("v1", "conversations", conversation["id"]))
    click.echo(f"{_named(conversation)} is in the trash; `legato restore {conversation['id']}` brings it back.")


def restore(home: Path | None, what: str | None, *, as_json: bool) -> None:
    """Take a conversation out of the trash; without a name, list what is in it."""
    with gateway(home) as client:
        if what is None:
            rows = _trash(client)
            _print(rows) if as_json else click.echo(_choices(rows) or "The trash is empty.", err=not rows)
            return
        conversation = _in_trash(client, what)
        restored = client.post(path_of("v1", "trash", conversation["id"], "restore"))
    if as_json:
        _print(restored)
        return
    click.echo(f"{conversation['id']} is back.")
    for name in restored["lost_names"]:
        click.echo(f"Its name {name!r} means another conversation by now.", err=True)


def purge(home: Path | None, what: str | None, *, everything: bool, yes: bool) -> None:
    """Let nothing be left of a conversation, or of the whole trash."""
    _one_of_both(what, everything, "everything that is in the trash")
    with gateway(home) as client:
        rows = _trash(client) if what is None else [_to_purge(client, what, asked=not yes and sys.stdin.isatty())]
        if rows and not yes:
            if not sys.stdin.isatty():
                raise BadInput(f"{_choices(rows)}\nThis cannot be undone, and nobody can be asked here: give --yes.")
            click.confirm(f"{_choices(rows)}\nThis cannot be undone. Purge", abort=True, err=True)
        gone: dict[str, Row] = {}
        while rows:
            _purge(client, rows)
            gone |= {row["id"]: row for row in rows}
            rows = [row for row in _trash(client) if row["id"] not in gone] if everything else []
        try:
            client.post("/v1/scrub")
        except Refused as error:
            if error.status != 403:
                raise
            click.echo("Its bytes leave the disk when an administrator next runs `legato purge`.", err=True)
    if gone:
        click.echo(_choices(list(gone.values())))
    click.echo(f"{len(gone)} {'conversation is' if len(gone) == 1 else 'conversations are'} gone for good.")


def _one_of_both(what: str | None, everything: bool, meaning: str) -> None:
    if what is None and not everything:
        raise BadInput(f"Say which conversation, or --all for {meaning}.")
    if what is not None and everything:
        raise BadInput(f"{what!r} is one conversation, --all is {meaning}: give one of them.")


def _purge(client: Client, rows: list[Row]) -> None:
    with click.progressbar(rows, label="Purging", file=sys.stderr, hidden=not sys.stderr.isatty()) as shown:
        for row in shown:
            if "deleted_at" not in row:
                client.delete(path_of("v1", "conversations", row["id"]))
            client.delete(path_of("v1", "trash", row["id"]))


def _trash(client: Client) -> list[Row]:
    """All that is in it, newest first."""
    rows: list[Row] = []
    more = True
    while more:
        page = client.get("/v1/trash", limit=1_000, after=rows[-1]["id"] if rows else None)
        rows += page["data"]
        more = page["has_more"]
    return rows


def _in_trash(client: Client, what: str) -> Row:
    """The conversation of the trash that someone means."""
    rows = _trash(client)
    found = _called(rows, what) or _beginning(rows, what)
    if found is not None:
        return found
    hint = f" In it are:\n{_choices(rows[:10])}" if rows else " It is empty."
    raise UnknownHandle(f"There is no conversation {what!r} in the trash.{hint}")


def _to_purge(client: Client, what: str, *, asked: bool) -> Row:
    """The conversation that is to be purged: what is called so in the trash, then what is called so and lives, and what
    only begins so last, and only where somebody will be `asked`."""
    rows = _trash(client)
    if (row := _called(rows, what)) is not None:
        return row
    found = client.get("/v1/resolve", what=what)
    begins = _beginning(rows, what) if found["match"] != "exact" else None
    row, whole = (begins, False) if begins is not None else _settled(what, found)
    if not whole and not asked:
        raise BadInput(_only_begins(what, row))
    return row


def _called(rows: list[Row], what: str) -> Row | None:
    """The one of these that is called exactly so."""
    return _one_of([row for row in rows if what and what in (row["id"], row["name"], row["title"])], what)


def _beginning(rows: list[Row], what: str) -> Row | None:
    """The one of these whose id, name or title begins so."""
    fields = ("id", "name", "title")
    return _one_of([row for row in rows if what and any((row[name] or "").startswith(what) for name in fields)], what)


def _one_of(matches: list[Row], what: str) -> Row | None:
    if len(matches) > 1:
        raise BadInput(f"{what!r} may mean any of these; say more:\n{_choices(matches)}")
    return matches[0] if matches else None


def _only_begins(what: str, row: Row) -> str:
    """What is removed is not guessed."""
    return f"{what!r} is only the beginning of this one; give its id or its whole name:\n{_choices([row])}"


def fork(home: Path | None, what: str, *, as_json: bool) -> None:
    with gateway(home) as client:
        made = client.post(path_of("v1", "conversations", resolve(client, what)["id"], "fork"), {})
    _print(made) if as_json else click.echo(made["id"])


def compact(home: Path | None, what: str, focus: str) -> None:
    with gateway(home) as client:
        conversation = resolve(client, what)
        client.post(path_of("v1", "conversations", conversation["id"], "compact"), {"focus": focus} if focus else {})
    click.echo(f"{conversation['id']} is compacted; nothing is lost, and /expand in its chat undoes it.")


def bind(home: Path | None, name: str, what: str, *, chat: bool) -> None:
    with gateway(home) as client:
        conversation = resolve(client, what)
        if chat:
            account, place, thread = [*name.split(":", 2), "", ""][:3]
            if not account or not place:
                raise BadInput("Say which chat, as CHANNEL:CHAT or CHANNEL:CHAT:THREAD.")
            body = {"conversation": conversation["id"], "thread": thread}
            client.put(path_of("v1", "chats", account, place), body)
            click.echo(f"The chat {name} goes on in {conversation['id']}.")
            return
        client.put(path_of("v1", "conversations", conversation["id"], "aliases", name))
    click.echo(f"{name} now means {conversation['id']}.")


FORMS = {".md": "markdown", ".markdown": "markdown", ".html": "html", ".htm": "html"}


def export(
    home: Path | None, what: str | None, *, everything: bool, form: str | None, output: Path | None, force: bool
) -> None:
    """A conversation, or all of them, to a file or to standard output."""
    _one_of_both(what, everything, "everything")
    form = form or (FORMS.get(output.suffix, "jsonl") if output else "jsonl")
    if everything and form != "jsonl":
        raise BadInput("Everything at once is exported as JSON lines; leave --format out.")
    if output is not None:
        check_free(output, force)
    with gateway(home) as client:
        path = path_of("v1", "export")
        if what is not None:
            path = path_of("v1", "conversations", resolve(client, what)["id"], "export") + f"?format={form}"
        if output is None:
            for chunk in client.chunks(path):
                sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
            return
        with written(output) as part, part.open("wb") as file:
            for chunk in client.chunks(path):
                file.write(chunk)
    click.echo(f"{output} has {output.stat().st_size:,} bytes.", err=True)


def import_files(home: Path | None, files: tuple[Path, ...], *, as_json: bool) -> None:
    """Conversations that were exported, under the ids and names that they had."""
    reports: list[Row] = []
    whole = True
    with gateway(home) as client:
        for file in files:
            with click.open_file(str(file), "rb") as source:
                begun = source.read(CHUNK)
                if not _EXPORTED.match(begun):
                    why = "is no export of Legato" if begun.strip() else "is empty"
                    click.echo(f"legato: {file} {why}; nothing of it was imported.", err=True)
                    whole = False
                    continue
                reports.append(client.send("/v1/import", _progress(begun, source, file)))
            if not as_json:
                _tell_import(reports[-1], f"{file}: " if len(files) > 1 else "")
    if as_json:
        _print(reports)
    if not whole or any(report["damaged"] or _refused(report) for report in reports):
        sys.exit(1)


_EXPORTED = re.compile(rb'\s*\{[^\n]*"type":\s*"(conversation|turn|entry|blob|end)"')
"""The first line of an export, even if it is damaged."""


def _progress(begun: bytes, source: IO[bytes], file: Path) -> Iterator[bytes]:
    size = file.stat().st_size if str(file) != "-" else 0
    hidden = not size or not sys.stderr.isatty()
    bar: Any = click.progressbar(length=size, label="Importing", file=sys.stderr, hidden=hidden)
    with bar as shown:
        chunk = begun
        while chunk:
            yield chunk
            shown.update(len(chunk))
            chunk = source.read(CHUNK)


def _tell_import(report: Row, of: str) -> None:
    """What came of a file, `of` which it is where there are several."""
    outcomes = [row["outcome"] for row in report["conversations"]]
    imported, present = outcomes.count("imported"), outcomes.count("present")
    click.echo(f"{of}{imported} imported" + (f", {present} already here" if present else "") + ".")
    for row in report["conversations"]:
        for name in row.get("lost_names", ()):
            click.echo(f"{of}{row['id']}: its name {name!r} means another conversation here.", err=True)
        if row.get("lost_entries"):
            click.echo(f"{of}{row['id']}: {_lost(row['lost_entries'])}", err=True)
    for row in _refused(report):
        click.echo(f"{of}{row['id']}: not imported. {row['why']}", err=True)
    for line in report["damaged"][:NAMED]:
        click.echo(f"{of}line {line['line']} is damaged: {line['why']}", err=True)
    if (more := len(report["damaged"]) - NAMED + report["omitted"]) > 0:
        click.echo(f"{of}and {more} more damaged {'line' if more == 1 else 'lines'}", err=True)


def _lost(count: int) -> str:
    return "1 entry was lost; a note stands for it." if count == 1 else f"{count} entries were lost; a note for each."


def _refused(report: Row) -> list[Row]:
    return [row for row in report["conversations"] if row["outcome"] == "refused"]


# -- keys


def create_key(home: Path | None, name: str, *, principal: str | None, scopes: tuple[str, ...], as_json: bool) -> None:
    with gateway(home) as client:
        body: Row = {"name": name, "scopes": list(scopes)} | ({"principal": principal} if principal else {})
        made = client.post("/v1/keys", body)
    if as_json:
        _print(made)
        return
    click.echo(made["key"])
    click.echo(f"This is the key of {made['principal']!r}. It is shown this once; keep it.", err=True)


def list_keys(home: Path | None, *, as_json: bool) -> None:
    with gateway(home) as client:
        rows = client.get("/v1/keys")["data"]
    if as_json:
        _print(rows)
        return
    for row in rows:
        state = f"revoked {_when(row['revoked_at'])}" if row["revoked_at"] else ""
        about = f"{row['name']:20} {row['principal']:20} {' '.join(row['scopes']):10}"
        click.echo(f"{about} {_when(row['created_at'])} {state}".rstrip())


def revoke_key(home: Path | None, name: str) -> None:
    with gateway(home) as client:
        revoked = client.delete(path_of("v1", "keys", name))["revoked"]
    click.echo(f"{revoked} {'key opens' if revoked == 1 else 'keys open'} nothing any more: {name!r}.")


# -- channels


def pair(home: Path | None, code: str | None, *, principal: str | None, remove: str | None, as_json: bool) -> None:
    """Let somebody speak on a channel; without a code, list who does."""
    with gateway(home) as client:
        if remove is not None:
            where = _unpair(client, remove)
            click.echo(f"{remove.partition('/')[2]} is a stranger on {where} again.")
            return
        if code is None:
            rows = client.get("/v1/pairings")["data"]
            if as_json:
                _print(rows)
            else:
                for row in rows:
                    click.echo(
                        f"{row['account']}/{row['sender']}  {one_line(row['name'])}  speaks for {row['principal']}"
                    )
                if not rows:
                    click.echo("Nobody is paired. Write to the bot; it answers with a code.", err=True)
            return
        person = client.post("/v1/pairings", {"code": code} | ({"principal": principal} if principal else {}))
    if as_json:
        _print(person)
    else:
        who = one_line(person["name"]) or person["sender"]
        click.echo(f"{who} on {person['account']} now speaks for {person['principal']}.")


def _unpair(client: Client, who: str) -> str:
    """Make a person of a channel, named as it is configured, or of a platform a stranger; says on which channels: a
    person is one on all those of a platform."""
    channel, _, sender = who.partition("/")
    if not channel or not sender:
        raise BadInput("Say who, as CHANNEL/SENDER; `legato pair` lists them.")
    rows = [row for row in client.get("/v1/pairings")["data"] if row["sender"] == sender]
    platform = next((row["channel"] for row in rows if channel in (row["account"], row["channel"])), None)
    if platform is None:
        raise UnknownHandle(f"Nobody known as {sender!r} is paired on {channel!r}; `legato pair` lists who is.")
    client.delete(path_of("v1", "pairings", platform, sender))
    return " and ".join(row["account"] for row in rows if row["channel"] == platform)


def deliveries(home: Path | None, *, resend: int | None, as_json: bool) -> None:
    """Answers that did not arrive; or try one again."""
    with gateway(home) as client:
        if resend is not None:
            client.post(path_of("v1", "deliveries", str(resend), "resend"))
            click.echo(f"{resend} is being sent again.")
            return
        rows = client.get("/v1/deliveries", limit=100)["data"]
    if as_json:
        _print(rows)
        return
    for row in rows:
        why = one_line(row["error"] or "")
        click.echo(f"{row['id']}  {_when(row['updated_at'])}  {row['channel']} {row['chat']}  {row['status']}: {why}")
    if not rows:
        click.echo("Everything has arrived.", err=True)


# -- what they share


def resolve(client: Client, what: str) -> Row:
    """The conversation that someone means: by its id, its slug or its title, whole or as a beginning that is unique.
    Never makes one; says what is near when there is none, and asks which when there are several."""
    return _meant(client, what)[0]


def _meant(client: Client, what: str) -> tuple[Row, bool]:
    """The same, and whether it was named as a whole: by id, name or title, or as one of several that was chosen."""
    return _settled(what, client.get("/v1/resolve", what=what))


def _settled(what: str, found: Row) -> tuple[Row, bool]:
    rows: list[Row] = found["data"]
    if found["match"] in ("near", "none"):
        near = f" The nearest are:\n{_choices(rows)}" if rows else ""
        raise UnknownHandle(f"There is no conversation {what!r}.{near}")
    if len(rows) == 1:
        return rows[0], found["match"] == "exact"
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        raise BadInput(f"{what!r} may mean any of these; say more:\n{_choices(rows)}")
    click.echo(f"{what!r} may mean any of these:\n{_choices(rows, numbered=True)}", err=True)
    return rows[click.prompt("Which", type=click.IntRange(1, len(rows)), err=True) - 1], True


def newest(client: Client) -> Row:
    """The conversation in which something happened last."""
    rows = _listed(client, 1, kind=TALK)
    if not rows:
        raise UnknownHandle("There is no conversation yet to go on with.")
    return rows[0]


def called(row: Row) -> str:
    """What people call a conversation."""
    return one_line(row["title"] or row["name"] or row["preview"])


def _named(row: Row) -> str:
    """A conversation in a sentence."""
    return f"{called(row)!r} ({row['id']})" if called(row) else str(row["id"])


def _choices(rows: list[Row], *, numbered: bool = False) -> str:
    return "\n".join(
        f"  {f'{place}. ' if numbered else ''}{row['id']}  {_when(row['updated_at'])}  {called(row)}"
        for place, row in enumerate(rows, 1)
    )


def _listed(client: Client, limit: int, **query: Any) -> list[Row]:
    rows: list[Row] = []
    after = None
    while len(rows) < limit:
        page = client.get("/v1/conversations", limit=min(100, limit - len(rows)), after=after, **query)
        rows += page["data"]
        if not page["has_more"]:
            break
        after = rows[-1]["id"]
    return rows


def _items(client: Client, conversation: str) -> list[Row]:
    items: list[Row] = []
    after = None
    while True:
        path = path_of("v1", "conversations", conversation, "items")
        page = client.get(path, order="asc", limit=100, after=after)
        items += page["data"]
        if not page["has_more"]:
            return items
        after = items[-1]["id"]


def _print(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))


def _when(seconds: int) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
