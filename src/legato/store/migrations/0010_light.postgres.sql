-- The planner keeps samples of what stands in a column, and those of a table that has been emptied stay. It needs none of
-- columns with words in them, so that what is purged was never there. To name its type again drops a column's samples.

alter table conversations
    alter title type text, alter title set statistics 0, alter settings type text, alter settings set statistics 0;
alter table aliases alter value type text, alter value set statistics 0;
alter table freed_aliases alter value type text, alter value set statistics 0;
alter table turns
    alter input type text, alter input set statistics 0, alter failure type text, alter failure set statistics 0;
alter table entries alter body type text, alter body set statistics 0;
alter table turn_events alter payload type text, alter payload set statistics 0;
alter table deliveries
    alter body type text, alter body set statistics 0, alter error type text, alter error set statistics 0;
alter table blobs alter data type bytea, alter data set statistics 0;
alter table requests alter made type text, alter made set statistics 0;
alter table previews alter message type text, alter message set statistics 0;
