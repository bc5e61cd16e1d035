-- name: find_turn
-- A turn, if it is this principal's and neither it nor its conversation was deleted.
select {turn} from turns where id = :id and principal = :principal and deleted_at is null
and exists (select 1 from conversations c where c.id = turns.conversation_id and c.deleted_at is null);

-- name: get_turn
-- A turn whoever owns it: for the engine.
select {turn} from turns where id = :id;

-- name: find_turn_by_dedup
select {turn} from turns where principal = :principal and dedup_key = :dedup_key;

-- name: find_turn_by_fingerprint
-- The newest turn after which a history stands exactly as it was sent; rather one that nothing came after.
select turns.id from turns join conversations c on c.id = turns.conversation_id
where turns.principal = :principal and turns.fingerprint = :fingerprint and turns.deleted_at is null
and c.deleted_at is null order by (coalesce(c.tip_turn, '') = turns.id) desc, turns.ended_at desc limit 1;

-- name: find_turn_by_request
-- The same request, still under way or answered a moment ago, with nothing after it: what a client's own retry means.
-- One that failed, or joined one that did, is asked for anew.
select {turn} from turns where principal = :principal and request_hash = :request_hash and deleted_at is null
and exists (select 1 from conversations c where c.id = turns.conversation_id and c.deleted_at is null
    and (turns.ended_at is null or (turns.status in ('done', 'joined') and turns.ended_at > {now} - :age and c.tip_turn = turns.id)))
and not exists (select 1 from turns h where h.id = turns.joined_turn and h.status in ('failed', 'cancelled'))
order by created_at desc limit 1;

-- name: await_request
-- Wait for whoever is about to make a conversation for the same request.
select 1 where {awaited};

-- name: find_failed_try
-- The same request, which failed a moment ago with nothing after it.
select {turn} from turns where principal = :principal and request_hash = :request_hash and deleted_at is null
and status in ('failed', 'cancelled') and ended_at > {now} - :age
and exists (select 1 from conversations c where c.id = turns.conversation_id and c.tip_turn = turns.id)
order by created_at desc limit 1;

-- name: delete_turn
-- Nobody can ask for it any more; what it wrote stays part of the conversation.
update turns set deleted_at = {now} where id = :id and deleted_at is null returning id;

-- name: draw_turn
-- The next place in the conversation's order; a talk turn becomes the tip.
update conversations set last_n = :n, tip_turn = coalesce(:tip, tip_turn), updated_at = :now where id = :id;

-- name: start_turn_here
-- The same for a turn that runs at once, with the place of its input in the log.
update conversations set last_n = :n, tip_turn = :tip, head_seq = :head, fence = :fence, updated_at = :now where id = :id;

-- name: usage_of
-- What a conversation has cost, upkeep included.
select sum(cast(usage{json} ->> 'input_tokens' as bigint)), sum(cast(usage{json} ->> 'output_tokens' as bigint)),
sum(cast(usage{json} ->> 'cached_tokens' as bigint)), sum(cast(usage{json} ->> 'cache_write_tokens' as bigint)),
sum(cast(usage{json} ->> 'reasoning_tokens' as bigint))
from turns where conversation_id = :conversation and usage is not null;

-- name: add_turn
insert into turns (id, conversation_id, n, parent_turn, principal, dedup_key, request_hash, kind, status, busy, input, created_at)
values (:id, :conversation, :n, :parent_turn, :principal, :dedup_key, :request_hash, :kind, 'queued', :busy, :input, :created_at);

-- name: start_turn
-- The same where nothing runs or waits: it runs from the beginning.
insert into turns (id, conversation_id, n, parent_turn, principal, dedup_key, request_hash, kind, status, busy, input, created_at,
    owner, attempts, claimed_at, first_seq)
values (:id, :conversation, :n, :parent_turn, :principal, :dedup_key, :request_hash, :kind, 'running', :busy, :input, :created_at,
    :node, 1, :created_at, :first_seq);

-- name: turns_to_come
-- Whether something waits or runs that comes after a turn.
select id from turns where conversation_id = :conversation and status in ('queued', 'running')
and kind = 'talk' and id <> :turn and n > :n limit 1;

-- name: later_success
-- Whether something that did not fail came after a turn in the log. An input that joined another counts as that one.
select t.id from entries e join turns u on u.id = e.turn_id join turns t on t.id = coalesce(u.joined_turn, u.id)
where e.conversation_id = :conversation and e.seq > :after and t.kind = 'talk' and t.id <> :turn
and t.status not in ('failed', 'cancelled') order by e.seq limit 1;

-- name: later_tries
-- What failed after a turn: the spans that a retry hides.
select distinct t.first_seq, t.last_seq from entries e join turns u on u.id = e.turn_id
join turns t on t.id = coalesce(u.joined_turn, u.id)
where e.conversation_id = :conversation and e.seq > :after and t.kind = 'talk' and t.id <> :turn
and t.status in ('failed', 'cancelled') order by t.first_seq;

-- name: any_open
-- Whether a turn of a conversation waits or runs.
select 1 from turns where conversation_id = :conversation and status in ('queued', 'running') limit 1;

-- name: open_conversations
-- Conversations with a turn that may be claimed: something waits and nothing runs, or what runs has lost its node.
select t.conversation_id from turns t
where t.status in ('queued', 'running')
and not exists (
    select 1 from turns r join nodes on nodes.id = r.owner
    where r.conversation_id = t.conversation_id and r.status = 'running'
    and (nodes.lease_until > {now} or nodes.id = :node))
group by t.conversation_id order by min(t.created_at) limit :limit;

-- name: claim_turn
-- The turn that is next in a conversation: the one whose node died, else one that was handed back, else an interrupt,
-- else the oldest waiting. A node that overslept its lease does not take its own turns from itself, except one it names
-- as lost; where it was the database that went away, that is no attempt of the turn.
update turns set status = 'running', owner = :node, claimed_at = {now},
    attempts = attempts + case when id = :cut_off and owner = :node then 0 else 1 end,
    first_seq = coalesce(first_seq, cast(:next_seq as bigint))
where id = (
    select q.id from turns q
    where q.conversation_id = :conversation and q.status in ('queued', 'running')
    order by (q.status = 'running') desc, (q.first_seq is not null) desc, (q.busy = 'interrupt') desc, q.n limit 1)
and (status = 'queued' or (id = :lost and owner = :node) or not exists (
    select 1 from nodes where nodes.id = turns.owner and (nodes.lease_until > {now} or nodes.id = :node)))
returning {turn};

-- name: mark_progress
-- A turn that moves on earns its attempts back, and has its bill so far written down.
update turns set attempts = 0, usage = :usage where id = :id;

-- name: end_turn
update turns set status = :status, owner = null, last_seq = :last_seq, usage = :usage, failure = :failure,
    fingerprint = :fingerprint, ended_at = {now}
where id = :id and status = 'running' returning {turn};

-- name: release_turn
-- Hand a turn back at shutdown: the attempt does not count.
update turns set status = 'queued', owner = null, attempts = case when attempts > 0 then attempts - 1 else 0 end
where id = :id and status = 'running' returning id;

-- name: cancel_queued
-- Only one that never began: one that was handed back has something to close.
update turns set status = 'cancelled', ended_at = {now}, cancel_at = {now}
where id = :id and status = 'queued' and first_seq is null returning {turn};

-- name: cancel_all_queued
update turns set status = 'cancelled', ended_at = {now}, cancel_at = {now}
where conversation_id = :conversation and status in ('queued', 'running') and status = 'queued' and first_seq is null;

-- name: request_cancel
-- A turn that has begun is stopped by the worker that holds it, or will; the wish is durable.
update turns set cancel_at = coalesce(cancel_at, {now})
where id = :id and status in ('queued', 'running') and first_seq is not null returning {turn};

-- name: request_interrupt
update turns set cancel_at = coalesce(cancel_at, {now})
where conversation_id = :conversation and status in ('queued', 'running') and first_seq is not null and kind = 'talk'
returning id;

-- name: steering_turns
-- Inputs that want to join the running turn, in order.
select {turn} from turns
where conversation_id = :conversation and status in ('queued', 'running') and status = 'queued'
and busy = 'steer' and kind = 'talk' and first_seq is null order by n;

-- name: join_turn
update turns set status = 'joined', joined_turn = :host, first_seq = :first_seq, last_seq = :last_seq, ended_at = {now}
where id = :id and status = 'queued' returning id;

-- name: last_ended
-- The turn after which nothing has ended yet: what is under way is still to be told.
select coalesce((
    select min(n) - 1 from turns where conversation_id = :id and status in ('queued', 'running')), last_n)
from conversations where id = :id;

-- name: turns_under_way
select {turn} from turns where conversation_id = :conversation and status in ('queued', 'running')
order by status = 'running' desc, n;

-- name: turns_untold
-- What is under way, and what has joined it.
select id from turns where conversation_id = :conversation and status in ('queued', 'running')
union all select id from turns where joined_turn in (
    select id from turns where conversation_id = :conversation and status = 'running');

-- name: turns_of
-- The turns of one conversation in order of admission.
select {turn} from turns where conversation_id = :conversation and n > :after order by n limit :limit;

-- name: add_events
-- A batch of events, refused when the lease is lost.
insert into turn_events (turn_id, first_n, last_n, payload)
select cast(:turn as text), cast(:first_n as bigint), cast(:last_n as bigint), cast(:payload as text)
from conversations where id = :conversation and fence = :fence {for_share}
returning last_n;

-- name: add_all_events [sqlite]
-- Batches of many turns at once, each refused when its lease is lost.
insert into turn_events (turn_id, first_n, last_n, payload)
select r.value ->> 0, r.value ->> 1, r.value ->> 2, r.value ->> 3 from json_each(:rows) r
cross join conversations c on c.id = r.value ->> 4 and c.fence = r.value ->> 5;

-- name: rows_changed [sqlite]
-- How many rows the statement before has written.
select changes();

-- name: events_kept [sqlite]
-- Which of them were not refused.
select r.key from json_each(:rows) r cross join conversations c on c.id = r.value ->> 4 and c.fence = r.value ->> 5;

-- name: put_events
-- A batch of events beside entries that have proved the lease.
insert into turn_events (turn_id, first_n, last_n, payload) values (:turn, :first_n, :last_n, :payload);

-- name: events_after
-- The batches that hold event :n and later ones, found by where they begin: those before are not looked at.
select first_n, payload from turn_events where turn_id = :turn and last_n >= :n and first_n >= coalesce((
    select max(first_n) from turn_events where turn_id = :turn and first_n <= :n), 0) order by first_n;

-- name: prunable_turns
-- After they are searched, so that the end of a turn has one index less to write.
select id from turns where pruned_at is null and indexed_at is not null and ended_at < (select {now}) - :age
order by ended_at limit :limit;

-- name: prune_events
delete from turn_events where turn_id = :turn;

-- name: mark_pruned
update turns set pruned_at = {now} where id = :turn;
