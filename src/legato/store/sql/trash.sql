-- name: keep_freed_aliases
-- The names of a conversation that is deleted, for the day that it is restored.
insert into freed_aliases (conversation_id, scheme, value, created_at)
select conversation_id, scheme, value, created_at from aliases where conversation_id = :conversation
on conflict do nothing;

-- name: freed_aliases_of
select scheme, value from freed_aliases where conversation_id = :conversation order by created_at, scheme, value;

-- name: give_aliases_back
-- Those that nobody has taken in the meantime.
insert into aliases (principal, scheme, value, conversation_id, created_at)
select c.principal, f.scheme, f.value, f.conversation_id, f.created_at
from freed_aliases f join conversations c on c.id = f.conversation_id where f.conversation_id = :conversation
on conflict do nothing returning scheme, value;

-- name: forget_freed_aliases
delete from freed_aliases where conversation_id = :conversation;

-- name: list_deleted
-- The trash of a principal, newest first.
select {conversation} from conversations
where principal = :principal and deleted_at is not null and purged_at is null
and (deleted_at, id) < (:before, :before_id)
order by deleted_at desc, id desc limit :limit;

-- name: place_in_trash
select deleted_at, id from conversations
where id = :id and principal = :principal and deleted_at is not null and purged_at is null;

-- name: lock_deleted
select {conversation} from conversations
where id = :id and principal = :principal and deleted_at is not null and purged_at is null {for_update};

-- name: undelete_conversation
update conversations set deleted_at = null where id = :id;

-- name: expired
-- What has been in the trash for longer than it is kept.
select principal, id from conversations
where deleted_at <= (select {now}) - :keep and purged_at is null order by deleted_at limit :limit;

-- name: forks_of
-- Whoever reads this log: living, deleted or itself purged.
select id, base_seq from conversations where parent_id = :id order by id {for_update};

-- name: reparent
update conversations set parent_id = :parent where id = :id;

-- name: attached
-- What mentions a blob among what is to go.
select body from entries where conversation_id = :id and seq > :keep and body like '%"blob":"%'
union all select input from turns where conversation_id = :id and input like '%"blob":"%';

-- name: purge_grams [sqlite]
delete from search_grams where rowid in (select id from search_documents where conversation_id = :id and seq > :keep);

-- name: purge_documents
delete from search_documents where conversation_id = :id and seq > :keep;

-- name: purge_events
delete from turn_events where turn_id in (select id from turns where conversation_id = :id);

-- name: purge_deliveries
delete from deliveries where turn_id in (select id from turns where conversation_id = :id);

-- name: purge_previews
delete from previews where turn_id in (select id from turns where conversation_id = :id);

-- name: purge_entries
delete from entries where conversation_id = :id and seq > :keep;

-- name: purge_joined_turns
delete from turns where conversation_id = :id and joined_turn is not null and (first_seq is null or first_seq > :keep);

-- name: purge_turns
delete from turns where conversation_id = :id and (first_seq is null or first_seq > :keep);

-- name: purge_requests
delete from requests where made = :id;

-- name: empty_turns
-- What is left of turns whose entries are still read: that they were, and where they ended.
update turns set input = '{}', dedup_key = null, request_hash = null, fingerprint = null, failure = null,
last_seq = case when last_seq > :keep then :keep else last_seq end where conversation_id = :id;

-- name: orphan_turns
-- Turns of a stump or a fork that continued a turn which is no more.
update turns set parent_turn = null where conversation_id = :id and parent_turn is not null
and not exists (select 1 from turns p where p.id = turns.parent_turn);

-- name: shorten_conversation
update conversations set title = '', agent = '', settings = '{}', head_seq = :keep, tip_turn = null,
purged_at = coalesce(purged_at, {now}) where id = :id;

-- name: purge_conversation
delete from conversations where id = :id;

-- name: is_purged
select parent_id from conversations where id = :id and purged_at is not null {for_update};

-- name: lock_blob
-- Whoever is about to refer to a blob is waited for, and seen.
select 1 from blobs where principal = :principal and sha256 = :sha256 {for_update};

-- name: blob_in_use
-- Whether anything of this owner still mentions a blob. What mentions one at all has an index.
select 1 from entries e join conversations c on c.id = e.conversation_id
where e.body like '%"blob":"%' and c.principal || '' = :principal and e.body like '%' || :sha256 || '%'
union all
select 1 from turns where principal = :principal and input like '%"blob":"%' and input like '%' || :sha256 || '%'
limit 1;

-- name: purge_blob
delete from blobs where principal = :principal and sha256 = :sha256;
