"""A list of the API server as JSON, read item by item: only one of its objects is there as a whole at a time. Pure.

As a whole a page takes up to some 20 times its size, in pieces that the process keeps ever after.
"""

import json
from collections.abc import Callable

from msgspec import Raw
from msgspec.json import Decoder

from gpushare.kube.resources import Object

_fields = Decoder(dict[str, Raw]).decode
_items = Decoder(list[Raw] | None).decode


def read_page(body: bytes, take: Callable[[Object], None]) -> Object:
    """Calls `take` with each of `items`, in their order; returns the rest of the list. ValueError: it is no JSON, or no
    list of objects; `take` may have been called by then.
    """
    fields = _fields(body)  # views of `body`, of which each is read by itself
    items = _items(fields["items"]) if "items" in fields else None
    if items is not None:
        del fields["items"]
    for raw in items or ():
        item = json.loads(bytes(raw))
        if not isinstance(item, dict):
            raise ValueError("an item is no object")
        take(item)
        del item  # before the next one is made
    return {name: json.loads(bytes(raw)) for name, raw in fields.items()}
