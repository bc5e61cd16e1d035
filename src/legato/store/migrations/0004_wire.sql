-- What clients of the wire need: to delete a response, to be recognised by the history they resend, and to retry.

alter table turns add column deleted_at double precision;
alter table turns add column fingerprint text;
create index turns_fingerprint on turns (principal, fingerprint) where fingerprint is not null;
create index turns_request on turns (principal, request_hash) where request_hash is not null;
