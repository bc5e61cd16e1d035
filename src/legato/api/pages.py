"""Lists, a page at a time."""

from typing import Any

from legato.api import unheeded
from legato.api.door import Call
from legato.errors import BadInput


def page(call: Call, rendered: list[dict[str, Any]], passed: int | None = None) -> dict[str, Any]:
    """A page of a list, in the order the client wants, after the item it names. Where that item is no longer in the
    list, `passed` of those that are were before it."""
    unheeded.check_include(call)
    order = call.query("order")
    if order not in (None, "asc", "desc"):
        raise BadInput("'order' must be 'asc' or 'desc'.", param="order")
    if order != "asc":
        rendered = rendered[::-1]
    after = call.query("after")
    if after is not None:
        places = [place for place, item in enumerate(rendered) if item["id"] == after]
        if not places and passed is None:
            raise BadInput(f"There is no item {after!r} here.", param="after")
        gone = (passed or 0) if order == "asc" else len(rendered) - (passed or 0)
        rendered = rendered[places[0] + 1 if places else gone :]
    limit = call.limit()
    return listing(rendered[:limit], has_more=len(rendered) > limit)


def listing(data: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }
