"""What is true: the only room that knows SQL.

A transaction is a coroutine that takes a `Tx` and awaits nothing but its statements. It is written once;
`Database.write` and `Database.read` run it, on SQLite or on PostgreSQL. There is no repository interface: the
modules here (directory, turns, log, outbox, blobs, keys, search, verify) are the store, and tests run them on both.
"""
