-- Single entries can be taken out of sight, and a request that makes something without a turn is carried out once.

drop index entries_control;
create index entries_control on entries (conversation_id, seq, kind, ref_seq, ref_first)  -- read without the entries
    where kind in ('setup', 'compaction', 'expand', 'rewind', 'pin', 'hide', 'remove');

create table requests (
    principal    text not null references principals (id),
    dedup_key    text not null,
    request_hash text not null,
    made         text not null references conversations (id),
    created_at   double precision not null,
    primary key (principal, dedup_key)
);
create index requests_oldest on requests (created_at);
