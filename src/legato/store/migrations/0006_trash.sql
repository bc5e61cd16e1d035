-- What was deleted can come back with its names, for a while; what was purged leaves only what its forks still read.

alter table conversations add column purged_at double precision;
create index conversations_deleted on conversations (principal, deleted_at) where deleted_at is not null;

create table freed_aliases (
    conversation_id text not null references conversations (id),
    scheme          text not null,
    value           text not null,
    created_at      double precision not null,
    primary key (conversation_id, scheme, value)
);
