-- Search is derived from entries and can be rebuilt. A document is a stretch of one entry's text.

create table search_documents (
    id              bigint generated always as identity primary key,
    conversation_id text not null references conversations (id),
    seq             bigint not null,
    grams           tsvector not null
);
create index search_documents_of on search_documents (conversation_id);
create index search_documents_grams on search_documents using gin (grams);
