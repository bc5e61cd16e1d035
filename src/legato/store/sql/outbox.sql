-- name: owe_delivery
insert into deliveries (turn_id, address, body, status, created_at, updated_at)
values (:turn, :address, :body, 'pending', {now}, {now});

-- name: next_delivery
-- The oldest answer owed to an address that has nothing in flight, so that order is kept; of one channel, by how its
-- addresses begin.
update deliveries set status = 'sending', owner = :node, attempts = attempts + 1, updated_at = {now}
where status = 'pending' and id = (
    select d.id from deliveries d where d.status = 'pending' and d.not_before <= {now}
    and substr(d.address, 1, length(cast(:channel as text))) = cast(:channel as text)
    and not exists (
        select 1 from deliveries s where s.address = d.address and s.status in ('pending', 'sending')
        and (s.status = 'sending' or s.id < d.id))
    order by d.id limit 1 {skip_locked})
returning {delivery};

-- name: settle_delivery
update deliveries set status = :status, owner = null, platform_message_id = :platform_message_id, error = :error,
not_before = {now} + :wait, updated_at = {now}
where id = :id and status = 'sending' and owner = :node returning id;

-- name: part_sent
-- So much of a long answer has arrived.
update deliveries set parts_sent = :parts, platform_message_id = :platform_message_id, updated_at = {now}
where id = :id and status = 'sending' and owner = :node returning id;

-- name: resend_delivery
-- A person decides that it is to be tried again, from the first part that is not known to have arrived.
update deliveries set status = 'pending', attempts = 0, not_before = 0, updated_at = {now}
where id = :id and status in ('unknown', 'dead')
and turn_id in (select id from turns where principal = :principal) returning id;

-- name: requeue_doubtful
-- On a channel that knows a repeated message by its key, what was in flight is simply sent again.
update deliveries set status = 'pending', updated_at = {now}
where status in ('unknown', 'dead') and status = 'unknown' and error = 'interrupted'
and substr(address, 1, length(cast(:channel as text))) = cast(:channel as text)
returning id;

-- name: forget_sent
-- The log has the answer. The row stays, and with it the count of what was sent.
update deliveries set body = '{"text":""}' where turn_id = :turn and status = 'sent';

-- name: forget_previews
delete from previews where turn_id = :turn and not exists (
    select 1 from deliveries d where d.turn_id = :turn and d.address = previews.address and d.status <> 'sent');

-- name: undelivered
-- What did not arrive, or may not have, of one owner; newest first.
select d.id, d.turn_id, t.conversation_id, d.address, d.status, d.attempts, d.error, d.updated_at
from deliveries d join turns t on t.id = d.turn_id
where d.status in ('unknown', 'dead') and t.principal = :principal order by d.id desc limit :limit;

-- name: doubt_deliveries
-- After a crash nobody knows whether these arrived: marked, never sent again blindly.
update deliveries set status = 'unknown', owner = null, error = 'interrupted', updated_at = {now}
where status in ('pending', 'sending') and status = 'sending'
and not exists (select 1 from nodes where nodes.id = deliveries.owner and nodes.lease_until > {now})
and substr(address, 1, length(cast(:channel as text))) = cast(:channel as text) returning {delivery};

-- name: deliveries_of_turn
select {delivery} from deliveries where turn_id = :turn order by address;
