-- name: add_blob [sqlite]
-- The same bytes of the same owner are kept once.
insert into blobs (principal, sha256, media_type, size, data, created_at)
values (:principal, :sha256, :media_type, :size, :data, {now}) on conflict do nothing;

-- name: add_blob [postgres]
-- The same; those that are there are held, so that no purge takes them meanwhile.
insert into blobs (principal, sha256, media_type, size, data, created_at)
values (:principal, :sha256, :media_type, :size, :data, {now})
on conflict (principal, sha256) do update set size = excluded.size;

-- name: find_blob
select media_type, data from blobs where principal = :principal and sha256 = :sha256;
