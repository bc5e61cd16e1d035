-- name: add_principal
-- A principal exists from its first use.
insert into principals (id, created_at) values (:principal, {now}) on conflict do nothing;

-- name: add_alias
-- A name is given once; the primary key refuses a second meaning.
insert into aliases (principal, scheme, value, conversation_id, created_at)
values (:principal, :scheme, :value, :conversation, {now});

-- name: owner_of_address
-- An address is unique in the whole installation.
select principal from aliases where scheme = 'address' and value = :value;

-- name: move_alias
-- Point a name at another conversation of the same principal (reset, resume, bind).
insert into aliases (principal, scheme, value, conversation_id, created_at)
values (:principal, :scheme, :value, :conversation, {now})
on conflict (principal, scheme, value) do update set conversation_id = excluded.conversation_id;

-- name: remove_alias
delete from aliases where principal = :principal and scheme = :scheme and value = :value returning conversation_id;

-- name: aliases_of
-- Every name of a conversation, oldest first.
select scheme, value from aliases where conversation_id = :conversation order by created_at, scheme, value;

-- name: add_conversation
-- One that a request makes which may be retried is held by that request, beside others like it, until it is committed.
insert into conversations (id, principal, title, agent, kind, settings, parent_id, base_seq, head_seq, created_at, updated_at)
select cast(:id as text), cast(:principal as text), cast(:title as text), cast(:agent as text), cast(:kind as text),
cast(:settings as text), cast(:parent as text), cast(:base as bigint), cast(:base as bigint), {now}, {now}
where cast(:request as text) is null or {held} returning {conversation};

-- name: find_by_id
-- A living conversation, if it is this principal's.
select {conversation} from conversations where id = :id and principal = :principal and deleted_at is null;

-- name: find_by_name
-- The living conversation that a name means, for one principal.
select {conversation} from conversations
where id = (select conversation_id from aliases where principal = :principal and scheme = :scheme and value = :value)
and principal = :principal and deleted_at is null;

-- name: get_conversation
-- A conversation whoever owns it: for the engine, which holds its lease.
select {conversation} from conversations where id = :id;

-- name: lock_by_id
-- The row lock under which a conversation's future is decided. Lock order everywhere: conversation, then turn.
select {conversation}, {now} from conversations
where id = :id and principal = :principal and deleted_at is null {for_update};

-- name: lock_by_name
select {conversation}, {now} from conversations
where id = (select conversation_id from aliases where principal = :principal and scheme = :scheme and value = :value)
and principal = :principal and deleted_at is null {for_update};

-- name: lock_conversation
-- The same whoever owns it, or deleted it.
select {conversation} from conversations where id = :id {for_update};

-- name: lock_head
-- The same for the engine, which needs to know no more.
select head_seq from conversations where id = :id {for_update};

-- name: rename_conversation
update conversations set title = :title where id = :id and principal = :principal and deleted_at is null returning id;

-- name: place_in_list
-- Where the next page begins; a conversation that was deleted since still has its place.
select updated_at, id from conversations where id = :id and principal = :principal and purged_at is null;

-- name: list_conversations
-- Living conversations that hold something, newest first.
select {conversation} from conversations
where principal = :principal and deleted_at is null and head_seq > 0 and (updated_at, id) < (:before, :before_id)
order by updated_at desc, id desc limit :limit;

-- name: list_talks
-- The same of the kind that most are; they are looked for among all, so that a turn has one index less to write.
select {conversation} from conversations
where principal = :principal and kind = 'chat' and deleted_at is null and head_seq > 0
and (updated_at, id) < (:before, :before_id)
order by updated_at desc, id desc limit :limit;

-- name: list_kind
-- The same of another kind.
select {conversation} from conversations
where principal = :principal and kind = :kind and kind <> 'chat' and deleted_at is null and head_seq > 0
and (updated_at, id) < (:before, :before_id)
order by updated_at desc, id desc limit :limit;

-- name: conversations_called
-- What is called exactly so: by id, by a name, or by title. Each way has its index.
select {conversation} from conversations
where deleted_at is null and id in (
    select id from conversations where id = :what and principal = :principal
    union
    select id from conversations
    where principal = :principal and title {binary} = :what and title <> '' and deleted_at is null
    union
    select conversation_id from aliases
    where principal = :principal and scheme in ('slug', 'external') and value = :what)
order by updated_at desc, id desc limit :limit;

-- name: conversations_beginning
-- What begins so: an id, a name, or a title; the first so many that are found, newest first, some perhaps twice. An id is
-- looked up as one (`|| ''` keeps the planner from going through everything of the principal instead).
select {conversation} from (
    select id as found from conversations
    where id {binary} >= :what and id {binary} < :beyond and principal || '' = :principal and deleted_at is null
    union all
    select id from conversations
    where principal = :principal and title {binary} >= :what and title {binary} < :beyond and title <> ''
    and deleted_at is null
    union all
    select conversation_id from aliases
    where principal = :principal and scheme in ('slug', 'external')
    and value {binary} >= :what and value {binary} < :beyond
    limit :limit) so join conversations on id = found
order by updated_at desc, id desc;

-- name: newest_beginning
-- The same where many begin so: looked for from the newest on. (An `exists` would read every name first.)
select {conversation} from conversations
where principal = :principal and deleted_at is null
and (substr(id, 1, :length) = :what or substr(title, 1, :length) = :what or 0 < (
    select count(*) from aliases a where a.conversation_id = conversations.id
    and a.scheme in ('slug', 'external') and substr(a.value, 1, :length) = :what))
order by updated_at desc, id desc limit :limit;

-- name: first_message
-- The first thing that was said in a conversation itself, and whether anything was taken back there since. (What is asked
-- of the kind beside the index of control entries is hidden from PostgreSQL, or it would rather read every entry.)
select body, exists (
    select 1 from entries c where c.conversation_id = :conversation
    and c.kind in ('setup', 'compaction', 'expand', 'rewind', 'pin', 'hide', 'remove') and c.kind || '' in ('rewind', 'remove'))
from entries where conversation_id = :conversation and kind = 'message' order by seq limit 1;

-- name: first_message_between
select body from entries where conversation_id = :conversation and kind = 'message' and seq between :first and :last
order by seq limit 1;

-- name: names_like
-- The titles and slugs that may contain a text: the plain ones in which a piece of it is, and all that are not plain.
select id, title from conversations
where principal = :principal and title <> '' and deleted_at is null
and (lower(title {binary}) like :pattern escape '\' or octet_length(title) <> length(title))
union all
select conversation_id, value from aliases where principal = :principal and scheme = 'slug'
and (lower(value {binary}) like :pattern escape '\' or octet_length(value) <> length(value));

-- name: list_among [sqlite]
-- The same among given ones.
select {conversation} from conversations
where id in (select value from json_each(:among)) and principal || '' = :principal and kind = coalesce(:kind, kind)
and deleted_at is null and head_seq > 0 and (updated_at, id) < (:before, :before_id)
order by updated_at desc, id desc limit :limit;

-- name: list_among [postgres]
select {conversation} from conversations
where id in (select json_array_elements_text(cast(cast(:among as text) as json))) and principal = :principal
and kind = coalesce(:kind, kind) and deleted_at is null and head_seq > 0 and (updated_at, id) < (:before, :before_id)
order by updated_at desc, id desc limit :limit;

-- name: addresses_of_principal
select value, conversation_id from aliases where principal = :principal and scheme = 'address' order by created_at desc, value;

-- name: change_settings
update conversations set settings = :settings where id = :id;

-- name: delete_conversation
update conversations set deleted_at = {now} where id = :id and deleted_at is null;

-- name: free_aliases
delete from aliases where conversation_id = :conversation;
