-- name: find_request
select request_hash, made from requests where principal = :principal and dedup_key = :dedup_key;

-- name: add_request
insert into requests (principal, dedup_key, request_hash, made, created_at)
values (:principal, :dedup_key, :request_hash, :made, {now});

-- name: forget_requests
delete from requests where created_at < (select {now}) - :age;
