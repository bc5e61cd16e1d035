-- A turn writes as few pages as it can.

drop index turns_one_running;
drop index turns_open;
create unique index turns_open                        -- what waits or runs; what runs stands at 0, so one runs at a time
    on turns (conversation_id, (case status when 'running' then 0 else n end)) where status in ('queued', 'running');

drop index turns_unpruned;
create index turns_unpruned on turns (ended_at) where pruned_at is null and indexed_at is not null;
