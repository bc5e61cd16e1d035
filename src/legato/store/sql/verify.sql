-- name: look_anew [sqlite]
-- A connection remembers how the search index lies in its file, and only a search makes it look again; the check of the
-- file does not, and would call what others have written since a corruption.
select rowid from search_grams where search_grams match '"z"' limit 1;

-- name: verify_file [sqlite]
-- What SQLite itself finds wrong: pages, indexes, NOT NULL, CHECK and UNIQUE.
select * from pragma_integrity_check;

-- name: verify_objects [sqlite]
-- The tables, indexes and triggers that are there.
select name from sqlite_schema;

-- name: verify_objects [postgres]
-- The tables, valid indexes and enabled triggers that are there.
select c.relname from pg_class c left join pg_index i on i.indexrelid = c.oid
where c.relnamespace = cast(current_schema() as regnamespace) and coalesce(i.indisvalid, true)
union all
select t.tgname from pg_trigger t join pg_class c on c.oid = t.tgrelid
where c.relnamespace = cast(current_schema() as regnamespace) and t.tgenabled <> 'D';

-- name: verify_foreign_keys [sqlite]
-- Rows that refer to nothing, as SQLite tells it.
select "table", rowid, parent from pragma_foreign_key_check limit 1000;

-- name: verify_references
-- Rows that refer to nothing and that no conversation leads to.
select 'key ' || k.name, 'principal ' || k.principal from api_keys k
where not exists (select 1 from principals p where p.id = k.principal)
union all
select distinct 'blobs of ' || b.principal, 'principal ' || b.principal from blobs b
where not exists (select 1 from principals p where p.id = b.principal)
union all
select distinct 'events of ' || e.turn_id, 'turn ' || e.turn_id from turn_events e
where not exists (select 1 from turns t where t.id = e.turn_id)
union all
select 'delivery ' || cast(d.id as text), 'turn ' || d.turn_id from deliveries d
where not exists (select 1 from turns t where t.id = d.turn_id)
limit 1000;

-- name: verify_dedup
-- Submissions that were admitted more than once.
select principal, dedup_key, count(*) from turns where dedup_key is not null
group by principal, dedup_key having count(*) > 1 limit 1000;

-- name: verify_addresses
-- Addresses that mean more than one conversation.
select value, count(*) from aliases where scheme = 'address' group by value having count(*) > 1 limit 1000;

-- name: verify_in_flight
-- Addresses with more than one answer in flight, so that their order is open.
select address, count(*) from deliveries where status in ('pending', 'sending') and status = 'sending'
group by address having count(*) > 1 limit 1000;

-- name: verify_documents [sqlite]
-- Search documents and their grams stand in two tables: here is what one has and the other lacks.
select id from search_documents where id not in (select rowid from search_grams)
union all
select rowid from search_grams where rowid not in (select id from search_documents)
limit 1000;

-- name: verify_documents [postgres]
-- Documents and grams are one row.
select id from search_documents where false;

-- name: verify_blobs
select principal, sha256, size from blobs where (principal, sha256) > (:principal, :sha256)
order by principal, sha256 limit :limit;

-- name: verify_count
select count(*) from conversations;

-- name: verify_next
-- The next id that anything calls a conversation, so that rows of one that is not there are found, too.
select min(id) from (
    select min(id) as id from conversations where id > :after
    union all select min(conversation_id) from turns where conversation_id > :after
    union all select min(conversation_id) from entries where conversation_id > :after
    union all select min(conversation_id) from aliases where conversation_id > :after
    union all select min(conversation_id) from search_documents where conversation_id > :after
) mentioned;

-- name: verify_conversation
select id, principal, parent_id, base_seq, head_seq, tip_turn, last_n, fence, settings, deleted_at, purged_at,
(select max(base_seq) from conversations f where f.parent_id = conversations.id),
(select count(*) from principals p where p.id = conversations.principal)
from conversations where id = :id;

-- name: verify_ancestors
-- The conversations that one reads, itself included. `union` ends it even where they run in a circle.
with recursive up (id, principal, parent_id, base_seq, head_seq) as (
    select id, principal, parent_id, base_seq, head_seq from conversations where id = :id
    union
    select p.id, p.principal, p.parent_id, p.base_seq, p.head_seq from up join conversations p on p.id = up.parent_id
)
select id, principal, parent_id, base_seq, head_seq from up;

-- name: verify_aliases
select principal, scheme, value from aliases where conversation_id = :conversation order by scheme, value;

-- name: verify_turns
-- JSON as bytes: a flipped bit may be no text any more, and has to be named, too.
select id, n, principal, kind, status, busy, owner, attempts, parent_turn, joined_turn, first_seq, last_seq, claimed_at,
ended_at, indexed_at, pruned_at, {raw}(input{as_raw}), {raw}(usage{as_raw}), {raw}(failure{as_raw})
from turns where conversation_id = :conversation and (n, id) > (:n, :id) order by n, id limit :limit;

-- name: verify_turn
-- Where a turn of another conversation is.
select conversation_id, kind from turns where id = :id;

-- name: verify_events
select e.turn_id, e.first_n, e.last_n, {raw}(e.payload{as_raw}) from turns t join turn_events e on e.turn_id = t.id
where t.conversation_id = :conversation and t.n between :first and :last order by t.n, t.id, e.first_n;

-- name: verify_deliveries
select d.turn_id, d.id, d.address, d.body, d.status, d.owner, d.attempts
from turns t join deliveries d on d.turn_id = t.id
where t.conversation_id = :conversation and t.n between :first and :last order by d.id;

-- name: verify_entries
select seq, id, turn_id, kind, ref_first, ref_seq, {raw}(body{as_raw})
from entries where conversation_id = :conversation and seq > :after order by seq limit :limit;

-- name: verify_doubled
-- Entries that a log holds more than once.
select id, min(seq), max(seq) from entries where conversation_id = :conversation
group by id having count(*) > 1 limit 1000;

-- name: verify_kind_at
select kind from entries where conversation_id = :conversation and seq = :seq;

-- name: verify_calls
-- The calls of an ancestor's log, to find the one that a result answers.
select seq, body from entries where conversation_id = :conversation and kind = 'tool_call'
and seq > :after and seq <= :upto order by seq limit :limit;

-- name: verify_searched
-- The positions that search knows.
select distinct seq from search_documents where conversation_id = :conversation;

-- name: verify_blob
select 1 from blobs where principal = :principal and sha256 = :sha256;
