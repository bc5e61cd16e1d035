-- name: export_aliases
select scheme, value, created_at from aliases where conversation_id = :conversation order by created_at, scheme, value;

-- name: export_turns
-- Turns that have ended, in order; of a stump, those whose entries are read.
select id, n, parent_turn, joined_turn, kind, status, busy, input, first_seq, last_seq, usage, failure, fingerprint,
created_at, claimed_at, ended_at, deleted_at
from turns where conversation_id = :conversation and n > :after and ended_at is not null
and coalesce(first_seq, 0) <= :upto order by n limit :limit;

-- name: export_end
-- Where what has ended ends: a turn that runs, or was handed back, writes at the head.
select coalesce(min(first_seq) - 1, (select head_seq from conversations where id = :conversation))
from turns where conversation_id = :conversation and status in ('queued', 'running');

-- name: conversations_in_order
-- Every living conversation of a principal, parents before their forks.
select id, created_at from conversations where principal = :principal and deleted_at is null
and (created_at, id) > (:created_at, :id) order by created_at, id limit :limit;

-- name: known_conversation
-- What a store has under an id, whoever's it is.
select principal, parent_id, base_seq, head_seq, deleted_at is not null, purged_at is not null
from conversations where id = :id {for_update};

-- name: import_conversation
-- Its fence begins a life of its own: whoever held a lease of what had this id before, or knows its words, is out of date.
insert into conversations (id, principal, title, agent, kind, settings, parent_id, base_seq, head_seq, tip_turn, last_n, fence,
created_at, updated_at, deleted_at, purged_at)
values (:id, :principal, :title, :agent, :kind, :settings, :parent_id, :base_seq, :head_seq, :tip, :last_n,
cast({now} * 1000 as bigint) * {life}, :created_at, :updated_at,
case when :stump = 1 then {now} end, case when :stump = 1 then {now} end)
on conflict (id) do update set title = excluded.title, agent = excluded.agent, kind = excluded.kind,
settings = excluded.settings, head_seq = excluded.head_seq, tip_turn = excluded.tip_turn, last_n = excluded.last_n, fence = excluded.fence,
created_at = excluded.created_at, updated_at = excluded.updated_at, deleted_at = excluded.deleted_at,
purged_at = excluded.purged_at
where conversations.principal = excluded.principal and conversations.purged_at is not null returning id;

-- name: import_turn
-- A turn that has ended; its events are told again from the entries. What a stump had kept of it is filled in.
insert into turns (id, conversation_id, n, parent_turn, joined_turn, principal, kind, status, busy, input, first_seq,
last_seq, usage, failure, fingerprint, created_at, claimed_at, ended_at, deleted_at, pruned_at)
values (:id, :conversation, :n, :parent_turn, :joined_turn, :principal, :kind, :status, :busy, :input, :first_seq, :last_seq,
:usage, :failure, :fingerprint, :created_at, :claimed_at, :ended_at, :deleted_at, {now})
on conflict (id) do update set input = excluded.input, usage = excluded.usage, failure = excluded.failure,
last_seq = excluded.last_seq, fingerprint = excluded.fingerprint, parent_turn = excluded.parent_turn,
deleted_at = excluded.deleted_at, indexed_at = null
where turns.conversation_id = excluded.conversation_id returning id;

-- name: import_entry
insert into entries (conversation_id, seq, id, turn_id, kind, ref_first, ref_seq, body, created_at)
values (:conversation, :seq, :id, :turn, :kind, :ref_first, :ref_seq, :body, :created_at) on conflict do nothing;

-- name: import_alias
insert into aliases (principal, scheme, value, conversation_id, created_at)
values (:principal, :scheme, :value, :conversation, :created_at) on conflict do nothing returning value;
