-- name: renew_node
-- One lease for all turns of a process, by the database's clock.
insert into nodes (id, lease_until) values (:node, {now} + :ttl)
on conflict (id) do update set lease_until = excluded.lease_until;

-- name: end_node
-- A process that leaves in good order gives its lease back.
delete from nodes where id = :node;

-- name: end_all_nodes
-- SQLite: whoever owns the file knows that every earlier process is gone.
delete from nodes;

-- name: forget_dead_nodes
delete from nodes where lease_until < {now} - 3600
and not exists (select 1 from turns where turns.owner = nodes.id and turns.status = 'running');

-- name: turns_of_node
-- What a process holds: whether someone wants it stopped, and how long ago it was claimed.
select id, conversation_id, cancel_at is not null, {now} - claimed_at from turns
where status in ('queued', 'running') and status = 'running' and owner = :node;
