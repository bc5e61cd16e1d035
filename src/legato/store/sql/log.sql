-- name: advance_head
-- Room for new entries at the head of the log, only for the holder of the lease.
update conversations set head_seq = head_seq + :count, updated_at = {now}
where id = :id and fence = :fence returning head_seq;

-- name: open_head
-- The same for a new holder of the lease: whoever wrote under the old number is refused from here on.
update conversations set head_seq = head_seq + :count, fence = fence + 1, updated_at = {now}
where id = :id returning head_seq, fence;

-- name: close_head
-- The last entries of a holder, who may write nothing more.
update conversations set head_seq = head_seq + :count, fence = fence + 1, updated_at = {now}
where id = :id and fence = :fence returning head_seq;

-- name: add_entry
insert into entries (conversation_id, seq, id, turn_id, kind, ref_first, ref_seq, body, created_at)
values (:conversation, :seq, :id, :turn, :kind, :ref_first, :ref_seq, :body, {now});

-- name: own_stretch
select parent_id, base_seq, head_seq from conversations where id = :id;

-- name: lineage
-- The stretches of log that a conversation reads: its own, then its ancestors', each up to where it was left.
with recursive lineage (id, parent_id, base_seq, upto, depth) as (
    select id, parent_id, base_seq, head_seq, 0 from conversations where id = :id
    union all
    select p.id, p.parent_id, p.base_seq, case when l.base_seq < l.upto then l.base_seq else l.upto end, l.depth + 1
    from lineage l join conversations p on p.id = l.parent_id
)
select id, base_seq, upto from lineage order by depth desc;

-- name: id_of_entry
select id from entries where conversation_id = :conversation and seq = :seq;

-- name: fence_of
select fence from conversations where id = :id;

-- name: controls
-- The control entries (and setups) of one stretch.
select seq, kind, coalesce(ref_seq, 0), coalesce(ref_first, 0) from entries
where conversation_id = :conversation and seq > :after and seq <= :upto
and {is_control} order by seq;

-- name: newest_controls
-- The same with only the last of its compactions and of its setups.
select seq, kind, coalesce(ref_seq, 0), coalesce(ref_first, 0) from entries
where conversation_id = :conversation and seq > :after and seq <= :upto
and {is_control}
and (kind not in ('setup', 'compaction')
    or seq = (select max(seq) from entries where conversation_id = :conversation and seq > :after and seq <= :upto
        and {is_control} and kind = 'compaction')
    or seq = (select max(seq) from entries where conversation_id = :conversation and seq > :after and seq <= :upto
        and {is_control} and kind = 'setup'))
order by seq;

-- name: entries_between
-- Entries of one stretch, oldest first.
select {entry} from entries where conversation_id = :conversation and seq between :first and :last order by seq;

-- name: messages_between
-- How many entries of one stretch are messages, calls or results.
select count(*) from entries where conversation_id = :conversation and seq between :first and :last
and kind in ('message', 'tool_call', 'tool_result');

-- name: place_of_entry
-- Where an entry of one stretch is, by its id.
select seq from entries where conversation_id = :conversation and seq between :first and :last and id = :id;

-- name: told_by_id
-- What a turn of a principal said, by its id alone, which begins as that of the turn. What was deleted is not told.
select e.seq, e.id, e.turn_id, e.body, e.created_at from turns t
join conversations c on c.id = t.conversation_id and c.deleted_at is null
join entries e on e.conversation_id = t.conversation_id and e.seq between t.first_seq and t.last_seq and e.turn_id = t.id
where t.id >= :first and t.id < :next and t.principal = :principal and t.deleted_at is null and e.id = :id
and not exists (select 1 from entries r where r.conversation_id = e.conversation_id and r.kind = 'remove' and r.ref_seq = e.seq);

-- name: entries_of_turn
select {entry} from entries
where conversation_id = :conversation and seq between :first and :last and turn_id = :turn order by seq;
