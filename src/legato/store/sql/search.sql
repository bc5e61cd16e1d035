-- name: unindexed_turns
-- Turns that ended and are not yet in the search index. One that joined another is indexed with it.
select id, principal, conversation_id, first_seq, last_seq from turns
where indexed_at is null and ended_at is not null and status <> 'joined' order by ended_at limit :limit;

-- name: mark_indexed [sqlite]
update turns set indexed_at = {now} where indexed_at is null and id in (
    select value from json_each(:turns)
    union all select id from turns where joined_turn in (select value from json_each(:turns)))
returning id;

-- name: mark_indexed [postgres]
-- A turn that another process is indexing is left to it: one that stands still in the middle must not hold others up.
update turns set indexed_at = {now} where id in (
    select turns.id from turns, json_array_elements_text(cast(:turns as json)) as ended
    where (turns.id = ended or turns.joined_turn = ended) and turns.indexed_at is null for update of turns skip locked)
returning id;

-- name: last_document [sqlite]
select coalesce(max(id), 0) from search_documents;

-- name: add_documents [sqlite]
-- All at once: between two statements a writer may have to wait until other threads let it go on.
insert into search_documents (id, conversation_id, seq)
select :last + 1 + d.key, d.value ->> 0, d.value ->> 1 from json_each(:places) d;

-- name: add_grams [sqlite]
insert into search_grams (rowid, grams) select :last + 1 + d.key, d.value from json_each(:grams) d;

-- name: add_document [postgres]
insert into search_documents (conversation_id, seq, grams)
values (:conversation, :seq, array_to_tsvector(string_to_array(:grams, ' ')));

-- name: latest_documents
-- Those of a principal among the newest of all.
select id, conversation_id, seq from (select id, conversation_id, seq from search_documents order by id desc limit :limit) latest
where exists (select 1 from conversations c where c.id = latest.conversation_id and c.principal = :principal) order by id desc;

-- name: begin_search [postgres]
-- The newest document. From here to the end of the transaction no table is read from one end to the other: the planner
-- takes a comparison of grams for a cheap one, and would rather make it for every document than use the index.
select coalesce(max(id), 0), set_config('enable_seqscan', 'off', true) from search_documents;

-- name: search_documents [sqlite]
-- Candidates, newest first, below a cursor.
select d.id, d.conversation_id, d.seq from search_grams g join search_documents d on d.id = g.rowid
where search_grams match :query and g.rowid < :before order by g.rowid desc limit :limit;

-- name: search_documents [postgres]
-- Candidates, newest first, below a cursor. Found by the index of grams (`id + 0` keeps the planner from another one), and
-- only then sorted: the other way round, a rare word would be looked for in every document.
with candidates as materialized (
    select id, conversation_id, seq from search_documents
    where grams @@ cast(cast(:query as text) as tsquery) and id + 0 < :before)
select id, conversation_id, seq from candidates order by id desc limit :limit;

-- name: search_lately [postgres]
-- The same, and not before another document. The eras are part of the index.
with candidates as materialized (
    select id, conversation_id, seq from search_documents
    where grams @@ cast(cast(:query as text) as tsquery) and id + 0 < :before and id + 0 >= :since
    and array[id / 20000] && (
        select array_agg(era) from generate_series(
            :since / 20000, least(:before, (select max(id) from search_documents)) / 20000) era))
select id, conversation_id, seq from candidates order by id desc limit :limit;

-- name: living_fork
-- A living conversation that reads a position of one that was deleted.
with recursive forks (id) as (
    select id from conversations where parent_id = :id and base_seq >= :seq
    union all
    select c.id from forks join conversations c on c.parent_id = forks.id where c.base_seq >= :seq
)
select c.id from forks join conversations c on c.id = forks.id
where c.principal = :principal and c.deleted_at is null order by c.updated_at desc, c.id limit 1;

-- name: clear_grams [sqlite]
delete from search_grams;

-- name: clear_documents
delete from search_documents;

-- name: unmark_indexed
update turns set indexed_at = null where indexed_at is not null;
