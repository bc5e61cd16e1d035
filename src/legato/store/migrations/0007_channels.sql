-- Messaging: who speaks, what came in, where talks go on, what is owed.

create table identities (
    channel     text not null,
    account     text not null,
    sender      text not null,                        -- the platform's own id of a person, which never changes
    principal   text not null references principals (id),
    name        text not null default '',
    paired_at   double precision not null,
    primary key (channel, account, sender)
);

create table pairing_codes (
    channel     text not null,
    account     text not null,
    sender      text not null,
    name        text not null default '',
    hash        text not null unique,                 -- only a hash of the code is stored
    created_at  double precision not null,
    expires_at  double precision not null,
    primary key (channel, account, sender)            -- one code a sender at a time
);

create table inbox (
    channel     text not null,
    account     text not null,
    message     text not null,
    received_at double precision not null,
    primary key (channel, account, message)           -- a message acts once
);
create index inbox_oldest on inbox (received_at);

create table addresses (
    value       text primary key,
    last_at     double precision not null,            -- when somebody last spoke there: what an idle reset is due from
    previous_id text references conversations (id)    -- where the talk was before the last reset
);

create table previews (
    turn_id     text not null references turns (id),
    address     text not null,
    message     text not null,                        -- shows the answer as it comes, and becomes the answer
    primary key (turn_id, address)
);

create table duties (
    name        text primary key,                     -- what one process does for all, such as to listen on a channel
    node        text not null
);

alter table deliveries add column not_before double precision not null default 0;
alter table deliveries add column parts_sent bigint not null default 0;
alter table deliveries add column error text;
