"""A scratch schema in someone's PostgreSQL: nothing outside it is read or written, and nothing of it is left."""

from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import asyncpg

from legato.errors import StoreUnavailable


async def create(url: str, schema: str) -> str:
    """Make the schema; returns the URL that leads into it."""
    await _run(url, f'create schema "{schema}"')
    return within(url, schema)


async def drop(url: str, schema: str) -> None:
    """Let nothing be left of it."""
    await _run(url, f'drop schema if exists "{schema}" cascade')


def within(url: str, schema: str) -> str:
    """The same database with another search path."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    query["options"] = f"{query.get('options', '')} -c search_path={schema}".strip()
    return urlunsplit(parts._replace(query=urlencode(query, quote_via=quote)))


async def _run(url: str, statement: str) -> None:
    try:
        connection = await asyncpg.connect(url, timeout=10)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError, ValueError) as error:
        told = str(error) if isinstance(error, OSError | asyncpg.PostgresError) else type(error).__name__
        raise StoreUnavailable(f"The drill needs a schema of its own in that database: {told}.") from error
