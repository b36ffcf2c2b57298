"""What an API server answers, read as objects or errors; a list item by item, so that only one object of it is there as
a whole at a time. Pure.

As a whole a page takes up to some 20 times its size, in pieces that the process keeps ever after.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus

from msgspec import Raw
from msgspec.json import Decoder

from gpushare.kube.resources import KubeError, Object

MAX_RETRY_DIGITS = 4
"""A wait of days is no API server's."""

_fields = Decoder(dict[str, Raw]).decode
_items = Decoder(list[Raw] | None).decode


def read_object(body: bytes, *fields: str) -> Object:
    """The JSON object with at least `fields`; KubeError: something between us and the API server sent another thing."""
    with suppress(ValueError):
        answer = json.loads(body)
        if isinstance(answer, dict) and all(field in answer for field in fields):
            return answer
    raise _foreign(body)


def read_list(body: bytes, take: Callable[[Object], None]) -> Object:
    """`read_page`, of what has metadata; KubeError as of `read_object`."""
    try:
        page = read_page(body, take)
    except ValueError as error:
        raise _foreign(body) from error
    if "metadata" not in page:
        raise _foreign(body)
    return page


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


def read_error(status: int, body: bytes, retry_after: str) -> KubeError:
    """The refusal with this HTTP `status` and header Retry-After, or "".

    Something between us and the API server may answer with anything, so only a Status object is read.
    """
    pause = _seconds(status, retry_after)
    try:
        answer = json.loads(body)
        return KubeError(status, str(answer.get("reason", "")), str(answer.get("message", "")), pause)
    except (ValueError, AttributeError):
        return KubeError(status, "", _beginning(body), pause)


def _seconds(status: int, header: str) -> float:
    """0: the server does not say when to ask again. As client-go, which takes whole seconds of a 429 or 5xx alone."""
    busy = status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return float(header) if busy and header.isdecimal() and len(header) <= MAX_RETRY_DIGITS else 0.0


def _foreign(body: bytes) -> KubeError:
    return KubeError(HTTPStatus.BAD_GATEWAY, "", f"the answer is none of an API server: {_beginning(body)!r}")


def _beginning(body: bytes) -> str:
    return body[:200].decode(errors="replace")
