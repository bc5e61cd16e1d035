-- name: figures_conversations
-- What a principal has. A log holds as many entries as it has positions of its own.
select count(case when deleted_at is null then 1 end),
count(case when deleted_at is null and parent_id is not null then 1 end),
count(case when deleted_at is not null and purged_at is null then 1 end),
cast(coalesce(sum(case when deleted_at is null then head_seq - base_seq else 0 end), 0) as bigint)
from conversations where principal = :principal;

-- name: figures_turns
-- How many turns there are of each status, and their tokens: in, out, cached. Counted, not kept: it takes as long as
-- there are turns.
select status, count(*), cast(coalesce(sum(cast(usage{json} ->> 'input_tokens' as bigint)), 0) as bigint),
cast(coalesce(sum(cast(usage{json} ->> 'output_tokens' as bigint)), 0) as bigint),
cast(coalesce(sum(cast(usage{json} ->> 'cached_tokens' as bigint)), 0) as bigint)
from turns where principal = :principal group by status;

-- name: figures_attachments
select count(*), cast(coalesce(sum(size), 0) as bigint) from blobs where principal = :principal;

-- name: bytes_on_disk [sqlite]
select page_count * page_size from pragma_page_count, pragma_page_size;

-- name: bytes_on_disk [postgres]
select pg_database_size(current_database());

-- name: figures_unindexed
-- Turns that search does not know yet, and for how many seconds the oldest has waited.
select count(*), coalesce({now} - min(ended_at), 0) from turns
where indexed_at is null and ended_at is not null and status <> 'joined';

-- name: figures_deliveries
select status, count(*) from deliveries group by status;

-- name: figures_waiting
-- How many turns wait.
select count(*) from turns where status in ('queued', 'running') and status = 'queued';

-- name: oldest_waiting
-- The turn that has waited longest: for how many seconds, and whether another of its conversation runs.
select t.id, {now} - t.created_at, exists (
    select 1 from turns r where r.conversation_id = t.conversation_id and r.status = 'running')
from turns t where t.status in ('queued', 'running') and t.status = 'queued' order by t.created_at, t.id limit 1;

-- name: failed_lately
-- Why turns failed, the commonest reason first.
select failure{json} ->> 'code', max(failure{json} ->> 'message'), count(*) from turns
where status = 'failed' and ended_at > (select {now}) - :age group by 1 order by 3 desc, 1;
