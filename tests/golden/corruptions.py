"""One row for each way to break a rule of the store. Names in braces are ids of the story, or numbers in it."""

from msgspec import Struct


class Broken(Struct):
    """A corruption, and what verify has to say of it: the rule and the place."""

    rule: str
    where: str
    sql: str
    only: str = ""


def conversation(name: str, change: str) -> str:
    return f"update conversations set {change} where id = '{{{name}}}'"


def turn(name: str, change: str) -> str:
    return f"update turns set {change} where id = '{{{name}}}'"


def entry(seq: object, change: str, of: str = "main") -> str:
    return f"update entries set {change} where conversation_id = '{{{of}}}' and seq = {seq}"


def body(seq: object, old: str, new: str, also: str = "id = id", of: str = "main") -> str:
    return entry(seq, f"body = replace(body, '{old}', '{new}'), {also}", of)


def events(first_n: int, change: str, of: str = "retry") -> str:
    return f"update turn_events set {change} where turn_id = '{{{of}}}' and first_n = {first_n}"


def payload(first_n: int, old: str, new: str, also: str = "turn_id = turn_id") -> str:
    return events(first_n, f"payload = replace(payload, '{old}', '{new}'), {also}")


def delivery(name: str, change: str) -> str:
    return f"update deliveries set {change} where id = {{{name}}}"


def alias(value: str, change: str) -> str:
    return f"update aliases set {change} where value = '{value}'"


WORK = "{main}/alias slug:work"
CHAT = '["telegram","bot","42",""]'
TWICE = (  # a unique constraint of SQLite cannot be dropped by its words
    "update sqlite_schema set sql = replace(sql, 'unique (conversation_id, n),', '') where name = 'turns';"
    "delete from sqlite_schema where name = 'sqlite_autoindex_turns_2'; pragma writable_schema = reset;"
)
RUN = "status = 'running', owner = 'node_x', claimed_at = 1, first_seq = 2"

CORRUPTIONS = [
    # the database
    Broken("file", "database", turn("first", "kind = 'chat'"), "sqlite"),
    Broken("file", "database", "delete from sqlite_schema where name = 'entries_attached'", "sqlite"),
    Broken("schema", "turns_open", "drop index turns_open"),
    Broken("schema", "entries_control", "drop index entries_control"),
    Broken("schema", "entries_kept", "alter table entries disable trigger entries_kept", "postgres"),
    Broken("readable", "{main}", turn("first", "owner = cast(x'ff' as text)"), "sqlite"),
    Broken("readable", "{main}", "alter table entries rename column body to corpus", "postgres"),
    Broken("value", "{main}/turn {first}", turn("first", "status = 'finished'")),
    Broken("value", "{main}/turn {first}", turn("first", "busy = 'maybe'")),
    Broken("value", "{main}/turn {first}", turn("first", "kind = 'chat'")),
    Broken("value", "{main}/turn {first}", turn("first", "first_seq = 'one'"), "sqlite"),
    Broken("value", "{main}", conversation("main", "fence = 'high'"), "sqlite"),
    Broken("value", "{main}/entry 2", entry(2, "ref_seq = 'two'"), "sqlite"),
    Broken("value", "{main}/turn {retry}", events(0, "last_n = 'many'"), "sqlite"),
    Broken("value", "{main}/alias slug:b'!'", alias("work", "value = x'21'"), "sqlite"),
    Broken("value", "{main}/alias nickname:work", alias("work", "scheme = 'nickname'")),
    Broken("value", "{main}/turn {interrupting}/delivery {d6}", delivery("d6", "status = 'lost'")),
    Broken("value", "blob alice/{picture}", "update blobs set data = 'words' where sha256 = '{picture}'", "sqlite"),
    Broken("reference", "key golden", "update api_keys set principal = 'nobody'"),
    Broken("reference", "blobs of nobody", "update blobs set principal = 'nobody'"),
    Broken("reference", "{main}", conversation("main", "principal = 'nobody'")),
    Broken("reference", "{fork}", conversation("fork", "parent_id = 'conv_none'")),
    Broken("reference", "{bobs}", "delete from conversations where id = '{bobs}'"),
    Broken("reference", "conv_none", alias("work", "conversation_id = 'conv_none'")),
    Broken("reference", "conv_none", turn("first", "conversation_id = 'conv_none'")),
    Broken("reference", "conv_none", entry(3, "conversation_id = 'conv_none'")),
    Broken("reference", "conv_none", "update search_documents set conversation_id = 'conv_none' where seq = 1"),
    Broken("writer", "{main}/entry 3", entry(3, "turn_id = 'resp_none'")),
    Broken("reference", "events of resp_none", events(6, "turn_id = 'resp_none'")),
    Broken("reference", "delivery {d1}", delivery("d1", "turn_id = 'resp_none'")),
    Broken("dedup", "bob/dedup key k1", "drop index turns_dedup; " + turn("waiting", "dedup_key = 'k1'")),
    Broken(
        "address",
        f"address {CHAT}",
        f"drop index aliases_address; insert into aliases values ('bob', 'address', '{CHAT}', '{{bobs}}', 1)",
    ),
    Broken("address", "{main}/alias address:telegram:42", alias(CHAT, "value = 'telegram:42'")),
    Broken("address", "{main}/turn {interrupting}/delivery {d6}", delivery("d6", "address = '[]'")),
    Broken("blob", "blob alice/{picture}", "update blobs set size = size + 1 where principal = 'alice'"),
    Broken(
        "blob",
        "blob bob/{paper}",
        "update blobs set data = (select data from blobs where principal = 'alice') where principal = 'bob'",
    ),
    # a conversation and its turns
    Broken("lineage", "{main}", conversation("main", "parent_id = '{fork3}'")),
    Broken("lineage", "{main}", conversation("main", "parent_id = '{main}'")),
    Broken("lineage", "{fork}", conversation("fork", "parent_id = null")),
    Broken("lineage", "{fork}", conversation("fork", "base_seq = 1000, head_seq = 1000")),
    Broken("lineage", "{fork}", conversation("fork", "base_seq = head_seq + 1")),
    Broken("owner", "{fork2}", conversation("fork", "principal = 'bob'")),
    Broken("owner", WORK, alias("work", "principal = 'bob'")),
    Broken("owner", "{main}/turn {second}", turn("second", "principal = 'bob'")),
    Broken("purged", "{main}", conversation("main", "purged_at = 1")),
    Broken("deleted", WORK, conversation("main", "deleted_at = 1")),
    Broken("fence", "{main}", conversation("main", "fence = -1")),
    Broken("fence", "{bobs}", conversation("bobs", "fence = 0")),
    Broken("order", "{main}/turn {interrupting}", conversation("main", "last_n = last_n - 1")),
    Broken("order", "{main}/turn {first}", turn("first", "n = 0")),
    Broken("order", "{main}/turn {later_of_two}", TWICE + turn("second", "n = 1"), "sqlite"),
    Broken(
        "order",
        "{main}/turn {later_of_two}",
        "alter table turns drop constraint turns_conversation_id_n_key; " + turn("second", "n = 1"),
        "postgres",
    ),
    Broken("tip", "{main}", conversation("main", "tip_turn = '{first}'")),
    Broken("tip", "{main}", conversation("main", "tip_turn = null")),
    Broken("tip", "{empty}", conversation("empty", "tip_turn = '{first}'")),
    Broken("tip", "{fork}", conversation("fork", "tip_turn = '{later}'")),
    Broken("parent", "{main}/turn {second}", turn("second", "parent_turn = '{retry}'")),
    Broken("parent", "{main}/turn {second}", turn("second", "parent_turn = 'resp_none'")),
    Broken("parent", "{main}/turn {second}", turn("second", "parent_turn = '{running}'")),
    Broken("parent", "{main}/turn {retry}", turn("retry", "parent_turn = '{compacted}'")),
    Broken("joined", "{main}/turn {steered}", turn("steered", "joined_turn = '{running}'")),
    Broken("joined", "{main}/turn {steered}", turn("steered", "joined_turn = '{steered}'")),
    Broken("joined", "{main}/turn {steered}", turn("steered", "joined_turn = '{compacted}'")),
    Broken("running", "{bobs}", "drop index turns_open; " + turn("waiting", RUN)),
    Broken("status", "{bobs}/turn {running}", turn("running", "owner = null")),
    Broken("status", "{bobs}/turn {running}", turn("running", "claimed_at = null")),
    Broken("status", "{bobs}/turn {running}", turn("running", "first_seq = null")),
    Broken("status", "{bobs}/turn {running}", turn("running", "last_seq = 1")),
    Broken("status", "{bobs}/turn {running}", turn("running", "ended_at = 1")),
    Broken("status", "{bobs}/turn {running}", turn("running", "attempts = -1")),
    Broken("status", "{bobs}/turn {waiting}", turn("waiting", "owner = 'node_x'")),
    Broken("status", "{bobs}/turn {waiting}", turn("waiting", "indexed_at = 1")),
    Broken("status", "{main}/turn {second}", turn("second", "ended_at = null")),
    Broken("status", "{main}/turn {second}", turn("second", "last_seq = null")),
    Broken("status", "{main}/turn {second}", turn("second", "joined_turn = '{first}'")),
    Broken("status", "{main}/turn {steered}", turn("steered", "joined_turn = null")),
    Broken("status", "{main}/turn {steered}", turn("steered", "busy = 'queue'")),
    Broken("span", "{main}/turn {second}", turn("second", "first_seq = 0")),
    Broken("span", "{main}/turn {second}", turn("second", "last_seq = 1000")),
    Broken("span", "{main}/turn {second}", turn("second", "last_seq = first_seq - 2")),
    Broken("span", "{fork}/turn {forked}", turn("forked", "first_seq = 1")),
    Broken("span", "{main}/turn {cancelled}", turn("cancelled", "last_seq = 1")),
    Broken("json", "{main}/turn {second}/input", turn("second", "input = '[]'")),
    Broken("json", "{main}/turn {second}/input", turn("second", "input = replace(input, 'drafts', 'draftz')")),
    Broken("json", "{main}/turn {second}/usage", turn("second", "usage = replace(usage, 'output', 'outpud')")),
    Broken("json", "{main}/turn {failed}/failure", turn("failed", "failure = 'no reason'")),
    Broken("json", "{main}/settings", conversation("main", "settings = '{{'")),
    Broken("json", "{main}/turn {interrupting}/delivery {d6}", delivery("d6", "body = 'x'")),
    # the log
    Broken("gap", "{main}/entry 4", "delete from entries where conversation_id = '{main}' and seq between 4 and 6"),
    Broken("gap", "{main}/entry 1", "delete from entries where conversation_id = '{main}' and seq = 1"),
    Broken("gap", "{empty}/entry 1", conversation("empty", "head_seq = 2")),
    Broken("beyond", "{main}/entry {head}", conversation("main", "head_seq = head_seq - 1")),
    Broken("beyond", "{fork}/entry 1", entry("{base}", "seq = 1", of="fork")),
    Broken("doubled", "{main}/entry 7", entry(7, "id = '{first_entry}'")),
    Broken("body", "{main}/entry 2", entry(2, "body = 'x'")),
    Broken("body", "{main}/entry 2", body(2, '"setup"', '"set-up"')),
    Broken("body", "{main}/entry 2", body(2, "instructions", "instructionz")),
    Broken("body", "{main}/entry 2", entry(2, "body = cast(x'7bff7d' as text)"), "sqlite"),
    Broken("columns", "{main}/entry 2", entry(2, "kind = 'note'")),
    Broken("columns", "{main}/entry 9", entry(9, "ref_seq = 2")),
    Broken("columns", "{main}/entry 11", entry(11, "ref_first = 1")),
    Broken("columns", "{main}/entry 9", body(9, '"upto":3', '"upto":4')),
    Broken("writer", "{main}/entry 2", entry(2, "turn_id = '{running}'")),
    Broken("writer", "{main}/entry 2", entry(2, "turn_id = '{second}'")),
    Broken("writer", "{main}/entry 2", entry(2, "turn_id = '{cancelled}'")),
    Broken("writer", "{main}/entry 8", turn("second", "last_seq = 7")),
    Broken("target", "{main}/entry 9", body(9, '"upto":3', '"upto":9', "ref_seq = 9")),
    Broken("target", "{main}/entry 10", body(10, '"at":1', '"at":2', "ref_seq = 2")),
    Broken("target", "{main}/entry 11", body(11, '"first":5', '"first":7', "ref_first = 7")),
    Broken("target", "{main}/entry {expand}", body("{expand}", '"of":9', '"of":2', "ref_seq = 2")),
    Broken("target", "{main}/entry {rewind}", body("{rewind}", '"to":', '"to":-', "ref_seq = -ref_seq")),
    Broken("target", "{fork2}/entry {pin2}", body("{pin2}", '"at":1', '"at":2', "ref_seq = 2", of="fork2")),
    Broken("brought", "{main}/entry 1", body(1, "weather", "whether")),
    Broken("brought", "{main}/turn {first}", entry(1, "id = 'msg_other'")),
    Broken("call", "{main}/entry 5", body(5, "call_1", "call_9")),
    Broken("answer", "{main}/entry 4", body(5, "call_1", "call_9")),
    Broken("answer", "{main}/entry {call2}", turn("failed", "status = 'done'")),
    Broken("attachment", "{main}/entry 7", "delete from blobs where principal = 'alice'"),
    # what follows from it
    Broken("events", "{main}/turn {retry}/event 5", "delete from turn_events where first_n = 4"),
    Broken("events", "{main}/turn {retry}/event 4", "delete from turn_events where first_n = 0"),
    Broken("events", "{main}/turn {retry}/event 6", events(6, "last_n = 10")),
    Broken("events", "{main}/turn {retry}/event 6", events(6, "payload = '[[]]'")),
    Broken("events", "{main}/turn {retry}/event 6", events(6, "payload = cast(x'5bff5d' as text)"), "sqlite"),
    Broken("events", "{main}/turn {retry}", turn("retry", "pruned_at = 1")),
    Broken("events", "{main}/turn {cancelled}", events(0, "turn_id = '{cancelled}'", of="second")),
    Broken("items", "{main}/entry {fog}", body("{fog}", "Fog", "Dog")),
    Broken("items", "{main}/turn {retry}", entry("{fog}", "id = 'msg_other'")),
    Broken("items", "{main}/turn {retry}/event 4", payload(4, '["a",1', '["a",0')),
    Broken("items", "{main}/turn {retry}/event 7", payload(6, '["d",2', '["d",3')),
    Broken("items", "{main}/turn {retry}", payload(5, "{steered}", "{undone}")),
    Broken("items", "{main}/turn {retry}", payload(6, ',["c",2,false]', "", "last_n = last_n - 1")),
    Broken("delivery", "{main}/turn {first}/delivery {d1}", turn("first", "status = 'cancelled'")),
    Broken("delivery", "{main}/turn {undone}/delivery {d4}", delivery("d4", "owner = null")),
    Broken("delivery", "{main}/turn {undone}/delivery {d4}", delivery("d4", "status = 'pending'")),
    Broken("delivery", "{main}/turn {undone}/delivery {d4}", delivery("d4", "attempts = 0")),
    Broken(
        "delivery",
        f"address {CHAT}",
        "drop index deliveries_one_in_flight; " + delivery("d5", "status = 'sending', owner = 'node_x', attempts = 1"),
    ),
    Broken("search", "{main}/entry 1000", "update search_documents set seq = 1000 where seq = 1"),
    Broken("search", "{main}/entry 1", "delete from search_documents where seq = 1"),
    Broken("search", "search document 1", "delete from search_grams where rowid = 1", "sqlite"),
    Broken("search", "search document 1", "delete from search_documents where id = 1", "sqlite"),
]
