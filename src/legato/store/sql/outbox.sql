-- name: owe_deliveries
-- An answer is owed to every address of the conversation when, and only when, the turn is done.
insert into deliveries (turn_id, address, body, status, created_at, updated_at)
select cast(:turn as text), value, cast(:body as text), 'pending', {now}, {now}
from aliases where conversation_id = :conversation and scheme = 'address';

-- name: next_delivery
-- The oldest answer owed to an address that has nothing in flight, so that order is kept.
update deliveries set status = 'sending', owner = :node, attempts = attempts + 1, updated_at = {now}
where status = 'pending' and id = (
    select d.id from deliveries d where d.status = 'pending'
    and not exists (
        select 1 from deliveries s where s.address = d.address and s.status in ('pending', 'sending')
        and (s.status = 'sending' or s.id < d.id))
    order by d.id limit 1 {skip_locked})
returning {delivery};

-- name: settle_delivery
update deliveries set status = :status, owner = null, platform_message_id = :platform_message_id, updated_at = {now}
where id = :id and status = 'sending' returning id;

-- name: doubt_deliveries
-- After a crash nobody knows whether these arrived: marked, never sent again blindly.
update deliveries set status = 'unknown', owner = null, updated_at = {now}
where status in ('pending', 'sending') and status = 'sending'
and not exists (select 1 from nodes where nodes.id = deliveries.owner and nodes.lease_until > {now}) returning id;

-- name: deliveries_of_turn
select {delivery} from deliveries where turn_id = :turn order by address;
