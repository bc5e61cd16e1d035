-- The log, the turns that write it, and the names that lead to it. One text for SQLite and PostgreSQL.

create table principals (
    id          text primary key,
    created_at  double precision not null
);

create table api_keys (
    hash        text primary key,               -- only a hash of the key is stored
    name        text not null,
    principal   text not null references principals (id),
    scopes      text not null default '',
    created_at  double precision not null,
    revoked_at  double precision
);

create table conversations (
    id          text primary key,
    principal   text not null references principals (id),
    title       text not null default '',
    agent       text not null default '',
    kind        text not null default 'chat',
    settings    text not null default '{}',
    parent_id   text references conversations (id),   -- a fork reads its parent's entries up to base_seq
    base_seq    bigint not null default 0,
    head_seq    bigint not null default 0,            -- the newest position; entries are numbered without a gap
    tip_turn    text,                                 -- the newest talk turn admitted
    last_n      bigint not null default 0,            -- order of admission, drawn under this row's lock
    fence       bigint not null default 0,            -- proves a lease: every write of a turn names it
    created_at  double precision not null,
    updated_at  double precision not null,
    deleted_at  double precision,
    check (base_seq <= head_seq)
);
create index conversations_newest on conversations (principal, updated_at);
create index conversations_forks on conversations (parent_id) where parent_id is not null;

create table aliases (
    principal       text not null references principals (id),
    scheme          text not null check (scheme in ('slug', 'external', 'address', 'fingerprint')),
    value           text not null,
    conversation_id text not null references conversations (id),
    created_at      double precision not null,
    primary key (principal, scheme, value)            -- a name means one conversation, within one owner
);
create index aliases_of on aliases (conversation_id);
create unique index aliases_address on aliases (value) where scheme = 'address';

create table nodes (
    id          text primary key,                     -- a process that runs turns
    lease_until double precision not null             -- past it, others may take its turns over
);

create table turns (
    id              text primary key,
    conversation_id text not null references conversations (id),
    n               bigint not null,
    parent_turn     text,
    joined_turn     text references turns (id),
    principal       text not null references principals (id),
    dedup_key       text,
    request_hash    text,
    kind            text not null check (kind in ('talk', 'upkeep')),
    status          text not null check (status in ('queued', 'running', 'done', 'failed', 'cancelled', 'joined')),
    busy            text not null check (busy in ('queue', 'steer', 'interrupt', 'reject')),
    input           text not null,
    owner           text,
    attempts        bigint not null default 0,        -- since the last progress
    first_seq       bigint,
    last_seq        bigint,
    usage           text,
    failure         text,
    cancel_at       double precision,
    created_at      double precision not null,
    claimed_at      double precision,
    ended_at        double precision,
    indexed_at      double precision,
    pruned_at       double precision,
    unique (conversation_id, n),
    check ((status = 'running') = (owner is not null)),
    check ((status in ('queued', 'running')) = (ended_at is null)),
    check ((status = 'joined') = (joined_turn is not null))
);
create unique index turns_one_running on turns (conversation_id) where status = 'running';
create unique index turns_dedup on turns (principal, dedup_key) where dedup_key is not null;
create index turns_open on turns (conversation_id, n) where status in ('queued', 'running');
create index turns_unindexed on turns (ended_at) where indexed_at is null and ended_at is not null;
create index turns_unpruned on turns (ended_at) where pruned_at is null and ended_at is not null;
create index turns_joined on turns (joined_turn) where joined_turn is not null;

create table entries (
    conversation_id text not null references conversations (id),
    seq             bigint not null check (seq > 0),
    id              text not null,
    turn_id         text not null references turns (id),
    kind            text not null,
    ref_first       bigint,                           -- the span a control entry speaks of
    ref_seq         bigint check (ref_seq < seq),
    body            text not null,
    created_at      double precision not null,
    primary key (conversation_id, seq)
);
create index entries_control on entries (conversation_id, seq, kind, ref_seq, ref_first)  -- read without the entries
    where kind in ('setup', 'compaction', 'expand', 'rewind', 'pin', 'hide');
create index entries_id on entries (id);

create table turn_events (
    turn_id     text not null references turns (id),
    first_n     bigint not null,
    last_n      bigint not null,
    payload     text not null,
    primary key (turn_id, first_n),
    check (first_n <= last_n)
);

create table deliveries (
    id                  {serial} primary key,         -- the order in which answers were owed
    turn_id             text not null references turns (id),
    address             text not null,
    body                text not null,
    status              text not null check (status in ('pending', 'sending', 'sent', 'unknown', 'dead')),
    owner               text,                         -- the process that is sending it
    attempts            bigint not null default 0,
    platform_message_id text,
    created_at          double precision not null,
    updated_at          double precision not null,
    unique (turn_id, address)
);
create unique index deliveries_one_in_flight on deliveries (address) where status = 'sending';
create index deliveries_open on deliveries (address, id) where status in ('pending', 'sending');

create table blobs (
    principal   text not null references principals (id),
    sha256      text not null,
    media_type  text not null,
    size        bigint not null,
    data        {bytes} not null,
    created_at  double precision not null,
    primary key (principal, sha256)
);
