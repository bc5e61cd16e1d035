-- name: schema_versions
-- Which migrations this database has had.
select version, name from schema_version order by version;

-- name: add_schema_version
insert into schema_version (version, name) values (:version, :name);

-- name: clock
-- The database's clock, in seconds.
select {now};
