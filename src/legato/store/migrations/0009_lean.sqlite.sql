-- A turn writes as few pages as it can: each is written twice, to the journal and then to its place.

drop index turns_one_running;
drop index turns_open;
create unique index turns_open                        -- what waits or runs; what runs stands at 0, so one runs at a time
    on turns (conversation_id, (case status when 'running' then 0 else n end)) where status in ('queued', 'running');

drop index turns_unpruned;
create index turns_unpruned on turns (ended_at) where pruned_at is null and indexed_at is not null;

create table moved as select * from turn_events;
drop table turn_events;
create table turn_events (
    turn_id     text not null references turns (id),
    first_n     bigint not null,
    last_n      bigint not null,
    payload     text not null,
    primary key (turn_id, first_n),
    check (first_n <= last_n)
) without rowid;
insert into turn_events select * from moved;
drop table moved;

-- That an entry belongs to a turn is asked by a trigger, not by a foreign key: that would need an index on every entry
-- for the day that its turn is purged. A constraint is taken out of the schema's text, and every row stays where it is.
drop index entries_turn;
pragma writable_schema = on;
update sqlite_schema set sql = replace(sql, 'turn_id         text not null references turns (id)', 'turn_id         text not null')
where name = 'entries';
pragma writable_schema = reset;
create trigger entries_of_turns before insert on entries
when not exists (select 1 from turns where id = new.turn_id)
begin select raise(abort, 'an entry belongs to a turn'); end;
create trigger turns_of_entries before delete on turns
when exists (select 1 from entries where conversation_id = old.conversation_id
    and seq between old.first_seq and coalesce(old.last_seq, 9223372036854775807) and turn_id = old.id)
begin select raise(abort, 'a turn is kept for its entries'); end;
