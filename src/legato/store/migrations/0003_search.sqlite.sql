-- Search is derived from entries and can be rebuilt. A document is a stretch of one entry's text.

create table search_documents (
    id              integer primary key,
    conversation_id text not null references conversations (id),
    seq             bigint not null
);
create index search_documents_of on search_documents (conversation_id);
create virtual table search_grams using fts5 (
    grams, content = '', contentless_delete = 1, detail = none, tokenize = 'ascii'
);
