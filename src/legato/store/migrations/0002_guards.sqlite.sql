-- Rules that no statement may break, whoever writes it.

create trigger entries_append_only before update on entries
begin select raise(abort, 'entries are append-only'); end;

create trigger entries_kept before delete on entries
when (select deleted_at from conversations where id = old.conversation_id) is null
begin select raise(abort, 'entries of a living conversation are kept'); end;

create trigger turns_legal before update of status on turns
when old.status <> new.status and not (
    (old.status = 'queued' and new.status in ('running', 'cancelled', 'joined'))
    or (old.status = 'running' and new.status in ('queued', 'done', 'failed', 'cancelled')))
begin select raise(abort, 'illegal turn transition'); end;
