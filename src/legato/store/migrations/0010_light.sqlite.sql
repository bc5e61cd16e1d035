-- A list of three or more values (`in (…)`) is made a table of its own by SQLite each time that a statement asks it.
-- The same rules, asked value by value; no row moves.

pragma writable_schema = on;
update sqlite_schema set sql = replace(replace(sql,
    'status in (''queued'', ''running'', ''done'', ''failed'', ''cancelled'', ''joined'')',
    'status = ''queued'' or status = ''running'' or status = ''done'' or status = ''failed'' or status = ''cancelled'' or status = ''joined'''),
    'busy in (''queue'', ''steer'', ''interrupt'', ''reject'')',
    'busy = ''queue'' or busy = ''steer'' or busy = ''interrupt'' or busy = ''reject''')
where name = 'turns';
pragma writable_schema = reset;

drop trigger turns_legal;
create trigger turns_legal before update of status on turns
when old.status <> new.status
and not (old.status = 'queued' and (new.status = 'running' or new.status = 'cancelled' or new.status = 'joined'))
and not (old.status = 'running'
    and (new.status = 'queued' or new.status = 'done' or new.status = 'failed' or new.status = 'cancelled'))
begin select raise(abort, 'illegal turn transition'); end;
