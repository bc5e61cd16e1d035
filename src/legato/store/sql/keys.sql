-- name: add_key
insert into api_keys (hash, name, principal, scopes, created_at) values (:hash, :name, :principal, :scopes, {now});

-- name: find_key
select principal, scopes from api_keys where hash = :hash and revoked_at is null;
