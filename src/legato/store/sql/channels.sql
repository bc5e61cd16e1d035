-- name: find_identity
select principal from identities where channel = :channel and account = :account and sender = :sender;

-- name: add_identity
insert into identities (channel, account, sender, principal, name, paired_at)
values (:channel, :account, :sender, :principal, :name, {now})
on conflict (channel, account, sender) do update set principal = excluded.principal, name = excluded.name
returning channel, account, sender, principal, name, paired_at;

-- name: list_identities
select channel, account, sender, principal, name, paired_at from identities order by paired_at, channel, sender;

-- name: remove_identity
delete from identities where channel = :channel and sender = :sender returning sender;

-- name: waiting_code
-- When a sender was last given a code that still holds.
select created_at from pairing_codes
where channel = :channel and account = :account and sender = :sender and expires_at > {now};

-- name: put_code
insert into pairing_codes (channel, account, sender, name, hash, created_at, expires_at)
values (:channel, :account, :sender, :name, :hash, {now}, {now} + :keep)
on conflict (channel, account, sender) do update set hash = excluded.hash, name = excluded.name,
created_at = excluded.created_at, expires_at = excluded.expires_at;

-- name: use_code
delete from pairing_codes where hash = :hash and expires_at > {now} returning channel, account, sender, name;

-- name: count_codes
select count(*) from pairing_codes where channel = :channel and account = :account and expires_at > {now};

-- name: forget_codes
delete from pairing_codes where expires_at < {now};

-- name: add_to_inbox
insert into inbox (channel, account, message, received_at) values (:channel, :account, :message, {now})
on conflict do nothing returning message;

-- name: in_inbox
select 1 from inbox where channel = :channel and account = :account and message = :message;

-- name: forget_inbox
delete from inbox where received_at < (select {now}) - :age;

-- name: last_spoken
select last_at, previous_id, {now} from addresses where value = :address;

-- name: spoken
insert into addresses (value, last_at) values (:address, {now})
on conflict (value) do update set last_at = excluded.last_at;

-- name: remember_previous
update addresses set previous_id = :previous where value = :address;

-- name: forget_previous
update addresses set previous_id = null where previous_id = :id;

-- name: add_preview
insert into previews (turn_id, address, message) values (:turn, :address, :message) on conflict do nothing;

-- name: find_preview
select message from previews where turn_id = :turn and address = :address;

-- name: take_duty
-- One process does it: whoever came first, until its lease has run out.
insert into duties (name, node) values (:name, :node)
on conflict (name) do update set node = excluded.node
where duties.node = excluded.node
or not exists (select 1 from nodes where nodes.id = duties.node and nodes.lease_until > {now}) returning node;

-- name: drop_duties
delete from duties where node = :node;
