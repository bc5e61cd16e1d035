-- What a store of 100,000 conversations needs so that nothing that people wait for grows with it.

drop index conversations_newest;
create index conversations_newest on conversations (principal, updated_at, id);
create index conversations_kind on conversations (principal, kind, updated_at, id) where kind <> 'chat';
create index conversations_title on conversations (principal, title) where title <> '' and deleted_at is null;

drop index entries_id;                                -- nothing looks an entry up by its id alone
create index entries_turn on entries (turn_id);       -- a turn that is purged is looked for here, because entries refer to it
create index entries_attached on entries (conversation_id) where body like '%"blob":"%';
create index turns_attached on turns (principal) where input like '%"blob":"%';
create index turns_failed on turns (ended_at) where status = 'failed';
create index deliveries_failed on deliveries (id) where status in ('unknown', 'dead');
