-- Rules that no statement may break, whoever writes it.

create function legato_entries_append_only() returns trigger language plpgsql as $$
begin
    raise exception 'entries are append-only' using errcode = 'integrity_constraint_violation';
end $$;
create trigger entries_append_only before update on entries
for each row execute function legato_entries_append_only();

create function legato_entries_kept() returns trigger language plpgsql as $$
begin
    if (select deleted_at from conversations where id = old.conversation_id) is null then
        raise exception 'entries of a living conversation are kept' using errcode = 'integrity_constraint_violation';
    end if;
    return old;
end $$;
create trigger entries_kept before delete on entries
for each row execute function legato_entries_kept();

create function legato_turns_legal() returns trigger language plpgsql as $$
begin
    raise exception 'illegal turn transition' using errcode = 'integrity_constraint_violation';
end $$;
create trigger turns_legal before update of status on turns
for each row when (old.status <> new.status and not (
    (old.status = 'queued' and new.status in ('running', 'cancelled', 'joined'))
    or (old.status = 'running' and new.status in ('queued', 'done', 'failed', 'cancelled'))))
execute function legato_turns_legal();
