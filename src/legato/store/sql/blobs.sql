-- name: add_blob
-- The same bytes of the same owner are kept once.
insert into blobs (principal, sha256, media_type, size, data, created_at)
values (:principal, :sha256, :media_type, :size, :data, {now}) on conflict do nothing;

-- name: find_blob
select media_type, data from blobs where principal = :principal and sha256 = :sha256;
