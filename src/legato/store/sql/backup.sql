-- name: backup_objects [sqlite]
-- The tables of a backup that are copied row by row. Search is derived, nodes are processes, and the version is made by
-- the migrations.
select name from sqlite_schema
where type = 'table' and name not in ('nodes', 'schema_version') and name not like 'search\_%' escape '\'
and name not like 'sqlite\_%' escape '\' order by rowid;

-- name: backup_columns [sqlite]
select name from pragma_table_info(:table) order by cid;

-- name: backup_counts
-- What a person knows a backup by.
select (select count(*) from conversations), (select count(*) from entries), (select count(*) from turns),
(select count(*) from blobs);

-- name: foreign_keys [postgres]
-- What refers to what; while rows are loaded this is asked at the end, so that their order does not matter.
select cast(cast(conrelid as regclass) as text), quote_ident(conname) from pg_constraint
where contype = 'f' and connamespace = cast(current_schema() as regnamespace);

-- name: counters [postgres]
-- The columns that number their rows by themselves.
select table_name, column_name from information_schema.columns
where table_schema = current_schema() and is_identity = 'YES';

-- name: occupied
-- Whether somebody has talked here already.
select exists (select 1 from conversations);

-- name: living_nodes
-- The processes that run on this database.
select id from nodes where lease_until > {now};

-- name: doubt_open_deliveries
-- After a restore nobody knows whether these were sent meanwhile: marked, never sent again blindly.
update deliveries set status = 'unknown', owner = null, attempts = case when attempts > 0 then attempts else 1 end,
    error = 'restored from a backup', updated_at = {now}
where status in ('pending', 'sending') returning id;
