"""Large stores made quickly, as a gateway would have left them: what `bench/scale.py` measures.

Rows go straight into the tables that the real migrations made, in bulk and with the indexes made anew at the end; that
they are honest rows is for `verify` to say. The talks are of one year, in order of time. They have skewed lengths, most
belong to one owner, some are forks, some hold a picture, some are in the trash; long ones were compacted. Events of the
last two days are still there. What is said comes from a pool of sentences whose words are as unevenly common as words
are, and whose grams are known beforehand.
"""

import contextlib
import hashlib
import itertools
import random
import struct
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import asyncpg
from msgspec import Struct, json

from legato.domain.entries import AnyBody, Compaction, Image, Message, Setup, Text, ToolCall, ToolResult
from legato.domain.events import Answered, Closed, Delta, Opened
from legato.domain.grams import grams, tag
from legato.domain.handles import Address
from legato.domain.ids import PrincipalId
from legato.domain.turns import Input, Options, Usage
from legato.store.log import row_of
from legato.store.postgres import Postgres
from legato.store.search import text_of
from legato.store.sqlite import Sqlite

OWNER = PrincipalId("owner")
OTHERS = [PrincipalId(f"other-{n}") for n in range(9)]
COMMON, MEDIUM, CJK, CJK_RARE = "the", "quixotic", "東京", "北京大学"
YEAR, KEPT_EVENTS = 365 * 86_400.0, 48 * 3600.0
POOL = 20_000
FOLD = 200  # entries after which a talk is compacted
LONG = (10_000, 5_000, 2_500)  # talks that only a store of more than 10,000 has
BATCH = 500  # talks that are written together
PICTURE = b"\x89PNG a picture of "

Rows = dict[str, list[dict[str, Any]]]


class Sentence(Struct, frozen=True):
    """Something to say, and the codes that search knows it by."""

    text: str
    codes: frozenset[str]
    line: str
    vector: bytes


class Document(Struct, frozen=True):
    """What search keeps of an entry: the sentence in it, and what else it is found by."""

    sentence: Sentence
    more: list[str]


def lengths(talks: int, entries: int, dice: random.Random) -> list[int]:
    """How long each talk is: most are short, few are long, and together they have so many entries."""
    long = list(LONG) if talks > 10_000 else []
    drawn = [min(dice.lognormvariate(0, 1), 12.0) for _ in range(talks - len(long))]
    scale = (entries - sum(long)) / sum(drawn)
    found = [max(4, round(length * scale)) for length in drawn]
    for place, length in enumerate(long):
        found.insert(len(found) * (place + 1) // (len(long) + 1), length)
    return found


def pool(dice: random.Random) -> list[Sentence]:
    """Sentences of words that are as unevenly common as words are."""
    syllables = [a + b for a in "bcdfghklmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er", "or")]
    words = ["".join(dice.choices(syllables, k=dice.choice((1, 2, 2, 3, 4)))) for _ in range(8_000)]
    weights = list(itertools.accumulate(1 / (rank + 2) for rank in range(len(words))))
    signs = [chr(0x4E00 + n * 7) for n in range(800)]
    made = []
    for n in range(POOL):
        said = dice.choices(words, cum_weights=weights, k=dice.randint(6, 22))
        if n % 5 < 2:
            said.insert(dice.randrange(len(said)), COMMON)
        if n % 1_000 == 0:
            said.insert(dice.randrange(len(said)), MEDIUM)
        if n % 50 == 1:
            said = ["".join(dice.choices(signs, k=20)), CJK + "".join(dice.choices(signs, k=12))]
        if n % 10_000 == 1:
            said.append(CJK_RARE)
        text = " ".join(said)
        codes = frozenset(grams(text))
        made.append(Sentence(text, codes, " ".join(codes), b"".join(map(_lexeme, codes))))
    return made


def _lexeme(code: str) -> bytes:
    return code.encode() + b"\0\0\0"


class Maker:
    """Makes talks, one after the other, as rows of all tables."""

    def __init__(self, talks: int, entries: int, now: float) -> None:
        self.dice = random.Random(talks)
        self.lengths = lengths(talks, entries, self.dice)
        self.pool = pool(self.dice)
        self.now = now
        self.documents = 0
        self.last: dict[str, Any] | None = None  # a talk that the next fork begins from

    def id(self, prefix: str) -> str:
        return f"{prefix}{self.dice.getrandbits(128):032x}"

    def batches(self) -> Iterator[tuple[int, Rows]]:
        """Rows of many talks at a time, and how many talks there are so far."""
        rows: Rows = defaultdict(list)
        for principal in (OWNER, *OTHERS):
            rows["principals"].append({"id": principal, "created_at": self.now - YEAR})
        for place, length in enumerate(self.lengths):
            self.talk(rows, place, length)
            if (place + 1) % BATCH == 0 or place + 1 == len(self.lengths):
                yield place + 1, rows
                rows = defaultdict(list)

    def talk(self, rows: Rows, place: int, length: int) -> None:
        dice = self.dice
        owner = OWNER if dice.random() < 0.9 else dice.choice(OTHERS)
        end = self.now - 60 - (len(self.lengths) - place) / len(self.lengths) * (YEAR - 86_400)
        begin = end - 30.0 * length
        talk = {
            "id": self.id("conv_"),
            "principal": owner,
            "title": self.title(place) if dice.random() < 0.6 else "",
            "agent": "default",
            "kind": "run" if dice.random() < 0.01 else "chat",
            "settings": "{}",
            "parent_id": None,
            "base_seq": 0,
            "head_seq": 0,
            "tip_turn": None,
            "last_n": 0,
            "fence": 0,
            "created_at": begin,
            "updated_at": end,
            "deleted_at": None,
            "purged_at": None,
        }
        if self.last is not None and owner == self.last["principal"] and dice.random() < 0.02:
            origin, self.last = self.last, None
            head = origin["head_seq"]
            talk |= {"parent_id": origin["id"], "base_seq": head, "head_seq": head, "tip_turn": origin["tip_turn"]}
        elif dice.random() < 0.005 and length < 1_000:
            talk["deleted_at"] = self.now - dice.uniform(0, 20 * 86_400)
        self.names(rows, talk, place)
        tags = [tag("y", owner), tag("z", talk["id"])]
        at, step, first, base = begin, (end - begin) / length, True, talk["base_seq"]
        while talk["head_seq"] - base < length:
            self.turn(rows, talk, at, step, tags, first=first)
            at, first = begin + (talk["head_seq"] - base) * step, False
        talk["updated_at"] = max(end, at)
        rows["conversations"].append(talk)
        if talk["deleted_at"] is None and talk["parent_id"] is None:
            self.last = talk

    def title(self, place: int) -> str:
        return " ".join(self.dice.choice(self.pool).text.split()[:3]).capitalize() + f" {place}"

    def names(self, rows: Rows, talk: dict[str, Any], place: int) -> None:
        names = []
        if self.dice.random() < 0.5:
            names.append(("slug", f"{'-'.join(self.dice.choice(self.pool).text.split()[-2:])}-{place}"))
        if self.dice.random() < 0.1:
            names.append(("external", f"session-{self.dice.getrandbits(64):016x}"))
        if self.dice.random() < 0.05 and talk["deleted_at"] is None:
            address = Address("telegram", "bot", str(place)).value
            names.append(("address", address))
            rows["addresses"].append({"value": address, "last_at": talk["updated_at"], "previous_id": None})
        for scheme, value in names:
            row = {"scheme": scheme, "value": value, "conversation_id": talk["id"], "created_at": talk["created_at"]}
            if talk["deleted_at"] is None:
                rows["aliases"].append({"principal": talk["principal"], **row})
            else:
                rows["freed_aliases"].append(row)

    def turn(self, rows: Rows, talk: dict[str, Any], at: float, step: float, tags: list[str], *, first: bool) -> None:
        """One turn of a talk: what was asked, now and then a tool, the answer; and what became of it."""
        asked, answered = self.dice.choice(self.pool), self.dice.choice(self.pool)
        code = f"k{talk['id'][5:15]}" if first else ""
        turn_id, base = self.id("resp_"), talk["head_seq"]
        parts: tuple[Any, ...] = (Text(f"{asked.text} {code}".strip()),)
        if first and self.dice.random() < 0.01:
            parts = (*parts, Image(blob=self.picture(rows, talk), media_type="image/png"))
        written: list[tuple[str, AnyBody]] = [(self.id("msg_"), Message("user", parts))]
        known: list[Sentence | None] = [asked]
        if first and base == 0:
            written.append((self.id("ent_"), Setup("default", "demo", "You are a helpful assistant.")))
            known.append(None)
        if self.dice.random() < 0.2:
            found, call = self.dice.choice(self.pool), self.id("call_")
            written.append((self.id("fc_"), ToolCall(call, "look_up", '{"what": "something"}')))
            written.append((self.id("fco_"), ToolResult(call, found.text)))
            known += [None, found]
        if (base + len(written) + 1) // FOLD > base // FOLD:
            written.append((self.id("cmp_"), Compaction(base, answered.text, by="demo", why="long")))
            known.append(None)
        written.append((self.id("msg_"), Message("assistant", (Text(answered.text),))))
        known.append(answered)
        ended = at + step * len(written)
        for place, (entry_id, body) in enumerate(written):
            row = row_of(talk["id"], turn_id, base + place + 1, _Draft(entry_id, body))
            row["created_at"] = at + step * place
            rows["entries"].append({_COLUMN.get(name, name): value for name, value in row.items()})
            if text_of(body):
                sentence = known[place]
                more = sorted(grams(sentence.text[-2:] + " " + code) - sentence.codes) if code and sentence else []
                document = Document(sentence or CALL, [*(more if place == 0 else []), *tags])
                self.documents += 1
                rows["search_documents"].append(
                    {"id": self.documents, "conversation_id": talk["id"], "seq": base + place + 1, "grams": document}
                )
        pruned = ended < self.now - KEPT_EVENTS
        rows["turns"].append(
            {
                "id": turn_id,
                "conversation_id": talk["id"],
                "n": talk["last_n"] + 1,
                "parent_turn": talk["tip_turn"],
                "principal": talk["principal"],
                "request_hash": f"{self.dice.getrandbits(256):064x}",
                "kind": "talk",
                "status": "done",
                "busy": "queue",
                "input": json.encode(Input((_Draft(*written[0]),), OPTIONS)).decode(),
                "attempts": 0,
                "first_seq": base + 1,
                "last_seq": base + len(written),
                "usage": json.encode(Usage(200 + base, 40, base)).decode(),
                "created_at": at,
                "claimed_at": at,
                "ended_at": ended,
                "indexed_at": ended,
                "pruned_at": ended + KEPT_EVENTS if pruned else None,
                "fingerprint": f"{self.dice.getrandbits(256):064x}" if self.dice.random() < 0.2 else None,
            }
        )
        if not pruned:
            rows["turn_events"].append(_events(turn_id, written[1:]))
        if rows["addresses"] and rows["aliases"] and rows["aliases"][-1]["conversation_id"] == talk["id"]:
            self.owe(rows, turn_id, answered.text, ended)
        talk |= {"head_seq": base + len(written), "tip_turn": turn_id}
        talk |= {"last_n": talk["last_n"] + 1, "fence": talk["fence"] + 2}

    def owe(self, rows: Rows, turn_id: str, answer: str, ended: float) -> None:
        alias = rows["aliases"][-1]
        if alias["scheme"] == "address":
            row = {"turn_id": turn_id, "address": alias["value"], "body": json.encode({"text": answer}).decode()}
            row |= {"status": "sent", "attempts": 1, "platform_message_id": "1"}
            rows["deliveries"].append({**row, "created_at": ended, "updated_at": ended})

    def picture(self, rows: Rows, talk: dict[str, Any]) -> str:
        data = PICTURE + talk["id"].encode()
        sha256 = hashlib.sha256(data).hexdigest()
        row = {"principal": talk["principal"], "sha256": sha256, "media_type": "image/png", "size": len(data)}
        rows["blobs"].append({**row, "data": data, "created_at": talk["created_at"]})
        return sha256


class _Draft(Struct, frozen=True):
    """A draft as the log writes it; here ids come from dice, so that a store can be made again."""

    id: str
    body: AnyBody


OPTIONS = Options(agent="default", echo={"model": "default", "metadata": {}, "store": True, "temperature": None})
_COLUMN = {"conversation": "conversation_id", "turn": "turn_id"}
_text = 'look_up {"what": "something"}'
_codes = frozenset(grams(_text))
CALL = Sentence(_text, _codes, " ".join(_codes), b"".join(map(_lexeme, _codes)))


def _events(turn_id: str, written: list[tuple[str, AnyBody]]) -> dict[str, Any]:
    """What followers were told."""
    told: list[Any] = []
    index = 0
    for entry_id, body in written:
        match body:
            case Message(text=text):
                told += [Opened(index, entry_id, "message"), Delta(index, text), Closed(index)]
            case ToolCall(call_id=call_id, name=name, arguments=text):
                told += [Opened(index, entry_id, "tool_call", call_id, name), Delta(index, text), Closed(index)]
            case ToolResult(call_id=call_id, output=output):
                told.append(Answered(index, entry_id, call_id, output))
            case _:
                continue
        index += 1
    return {"turn_id": turn_id, "first_n": 0, "last_n": len(told) - 1, "payload": json.encode(told).decode()}


# -- into the databases


def progress(place: str, done: int, total: int, since: float) -> None:
    sys.stderr.write(f"\r  {place}: {done:,} of {total:,} conversations, {time.perf_counter() - since:.0f} s ")
    sys.stderr.flush()


async def fill_sqlite(path: Path, talks: int, entries: int) -> None:
    """A store in one file. It has its name when it is whole."""
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    await (await Sqlite.open(part)).close()
    connection = apsw.Connection(str(part))
    for setting in ("journal_mode = off", "synchronous = off", "cache_size = -4000000", "foreign_keys = off"):
        connection.execute(f"pragma {setting}").fetchall()
    guards = connection.execute(
        "select type, name, sql from sqlite_schema where type in ('index', 'trigger') and sql is not null"
    ).fetchall()
    for kind, name, _ in guards:
        connection.execute(f"drop {kind} {name}")
    connection.execute("insert into search_grams (search_grams, rank) values ('hashsize', 200000000)")
    maker, since = Maker(talks, entries, time.time()), time.perf_counter()
    for done, rows in maker.batches():
        with connection:
            documents = rows.pop("search_documents")
            found = [(d["id"], f"{d['grams'].sentence.line} {' '.join(d['grams'].more)}") for d in documents]
            connection.executemany("insert into search_grams (rowid, grams) values (?, ?)", found)
            rows["search_documents"] = [{k: v for k, v in d.items() if k != "grams"} for d in documents]
            for table, given in rows.items():
                if given:
                    places = ", ".join("?" * len(given[0]))
                    text = f"insert into {table} ({', '.join(given[0])}) values ({places})"
                    connection.executemany(text, [tuple(row.values()) for row in given])
        progress(str(path), done, talks, since)
    connection.execute("insert into search_grams (search_grams, rank) values ('hashsize', 1048576)")
    for *_, text in guards:
        connection.execute(text)
    connection.close()
    await (await Sqlite.open(part)).close()  # its journal is as a gateway has it again
    part.rename(path)
    progress(str(path), talks, talks, since)
    sys.stderr.write("\n")


async def fill_postgres(url: str, talks: int, entries: int) -> None:
    """The same in an empty database of a server."""
    await (await Postgres.open(url)).close()
    connection = await asyncpg.connect(url)
    encode = {"encoder": _vector, "decoder": bytes, "schema": "pg_catalog", "format": "binary"}
    await connection.set_type_codec("tsvector", **encode)
    for setting in ("session_replication_role = replica", "synchronous_commit = off", "maintenance_work_mem = '1GB'"):
        await connection.execute(f"set {setting}")
    indexes = await connection.fetch(
        "select indexname, indexdef from pg_indexes where schemaname = current_schema() "
        "and indexname not in (select conname from pg_constraint)"
    )
    for name, _ in indexes:
        await connection.execute(f"drop index {name}")
    maker, since = Maker(talks, entries, time.time()), time.perf_counter()
    for done, rows in maker.batches():
        for document in rows["search_documents"]:
            del document["id"]  # the column numbers itself
        for table, given in rows.items():
            if given:
                records = [tuple(row.values()) for row in given]
                await connection.copy_records_to_table(table, records=records, columns=list(given[0]), timeout=600)
        progress("PostgreSQL", done, talks, since)
    for name, text in indexes:
        await connection.execute(text, timeout=3600)
        progress(f"PostgreSQL {name}", talks, talks, since)
    await connection.execute("vacuum analyze", timeout=3600)
    await connection.execute("checkpoint", timeout=3600)
    with contextlib.suppress(asyncpg.PostgresError, OSError):
        await connection.close()
    progress("PostgreSQL", talks, talks, since)
    sys.stderr.write("\n")


def _vector(document: Document) -> bytes:
    """A document as PostgreSQL takes it in binary: how many words, and each with no positions."""
    more = document.more
    return (
        struct.pack(">I", len(document.sentence.codes) + len(more))
        + document.sentence.vector
        + b"".join(map(_lexeme, more))
    )
