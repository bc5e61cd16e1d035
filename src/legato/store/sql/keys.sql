-- name: add_key
insert into api_keys (hash, name, principal, scopes, created_at) values (:hash, :name, :principal, :scopes, {now})
on conflict (hash) do nothing returning hash;

-- name: key_given
-- What a key was given for; one that was revoked is given to nobody again.
select name, principal, scopes from api_keys where revoked_at is null and hash = :hash;

-- name: list_keys
select name, principal, scopes, created_at, revoked_at from api_keys order by created_at, name;

-- name: revoke_key
update api_keys set revoked_at = {now} where name = :name and revoked_at is null returning hash;

-- name: key_revoked
select 1 from api_keys where hash = :hash and revoked_at is not null;

-- name: find_key
select principal, scopes from api_keys where hash = :hash and revoked_at is null;
