"""A kind that is followed: what was listed and what came since, through refusals and broken watches."""

import json
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gpushare.kube.resources import PODS
from gpushare.kubectl.api import MOST_OBJECT_BYTES, AnswerTooLargeError
from gpushare.kubectl.page.cluster.watch import Followed, KindWatch
from tests.unit.kubectl.page.fake_api import FakeApi, fake_api, status

PATH = "/api/v1/pods"


def pod(name: str, version: str = "5") -> dict[str, Any]:
    return {"metadata": {"namespace": "ml", "name": name, "resourceVersion": version}}


def page(*names: str, token: str = "") -> dict[str, Any]:
    return {"metadata": {"resourceVersion": "4", "continue": token}, "items": [pod(name) for name in names]}


class Kept:
    """What a watch put; each change and each trouble comes out of `said`, in order."""

    def __init__(self, api: FakeApi, optional: bool = False) -> None:
        self.names: set[str] = set()
        self.said: queue.Queue[str] = queue.Queue()
        self.stop = threading.Event()
        followed = Followed(PODS, self.put, self.remove, None, {"fieldSelector": "status.phase=Pending"}, optional)
        run = KindWatch(api.reader(), followed, lambda text: self.said.put(f"trouble {text}")).run
        threading.Thread(target=run, args=(self.stop,), daemon=True).start()

    def put(self, item: dict[str, Any]) -> None:
        self.names.add(item["metadata"]["name"])
        self.said.put(f"put {item['metadata']['name']}")

    def remove(self, key: tuple[str, str]) -> None:
        self.names.discard(key[1])
        self.said.put(f"remove {key[1]}")

    def hear(self, count: int) -> list[str]:
        return [self.said.get(timeout=10) for _ in range(count)]


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with fake_api() as server:
        yield server


def test_pages_of_a_list_then_events(api: FakeApi) -> None:
    api.answers[PATH] = lambda query: page("b") if query.get("continue") else page("a", token="next")
    kept = Kept(api)
    assert kept.hear(3) == ["put a", "put b", "trouble "]
    api.events.put({"type": "ADDED", "object": pod("c", "7")})
    api.events.put({"type": "DELETED", "object": pod("a", "8")})
    api.events.put({"type": "BOOKMARK", "object": pod("ignored", "9")})
    assert kept.hear(2) == ["put c", "remove a"]
    api.events.put(None)  # the API server ends the watch: the next one begins where it ended
    api.events.put({"type": "MODIFIED", "object": pod("b", "10")})
    assert kept.hear(1) == ["put b"]
    kept.stop.set()
    watches = [query["resourceVersion"] for _, query in api.asked if "watch" in query]
    assert watches == ["4", "9"]
    assert all(query["fieldSelector"] == "status.phase=Pending" for _, query in api.asked)
    assert kept.names == {"b", "c"}


def test_what_went_while_the_version_expired_is_removed(api: FakeApi) -> None:
    api.answers[PATH] = page("a", "b")
    kept = Kept(api)
    kept.hear(3)
    api.answers[PATH] = page("b")
    api.events.put({"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}})
    assert kept.hear(3) == ["put b", "remove a", "trouble "]
    kept.stop.set()


def test_what_may_not_be_read_is_told_in_the_api_servers_words(api: FakeApi) -> None:
    api.answers[PATH] = 403, status("Forbidden", "you may not list pods")
    kept = Kept(api)
    assert kept.hear(1) == ["trouble Forbidden: you may not list pods"]
    kept.stop.set()


def test_a_kind_that_the_api_server_may_do_without_is_no_trouble(api: FakeApi) -> None:
    kept = Kept(api, optional=True)
    assert kept.hear(1) == ["trouble "]
    kept.stop.set()


def test_an_answer_of_something_else_is_told(api: FakeApi) -> None:
    api.answers[PATH] = {}
    kept = Kept(api)
    assert kept.hear(1)[0].startswith("trouble an answer cannot be read")
    kept.stop.set()


def test_an_event_that_is_none_is_told_and_listing_begins_again(api: FakeApi) -> None:
    api.answers[PATH] = page("a")
    kept = Kept(api)
    kept.hear(2)
    api.events.put({"object": "nothing"})
    assert kept.hear(1)[0].startswith("trouble a watch event cannot be read")
    api.events.put(None)  # for the watch that broke off, whose handler still waits
    assert kept.hear(2) == ["put a", "trouble "]
    kept.stop.set()


def test_large_objects_take_smaller_pages_and_hide_nothing(api: FakeApi) -> None:
    bodies = {name: pod(name) | {"text": "x" * 600_000} for name in ("a", "b", "c")}
    bodies["huge"] = pod("huge") | {"text": "x" * (MOST_OBJECT_BYTES + 1)}
    bodies["z"] = pod("z")
    names = sorted(bodies)

    def listed(query: dict[str, str]) -> bytes:
        begin, limit = int(query.get("continue") or 0), int(query["limit"])
        chosen, rest = names[begin : begin + limit], names[begin + limit :]
        metadata = {"resourceVersion": "4", **({"continue": str(begin + limit)} if rest else {})}
        head = {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": [bodies[name] for name in chosen]}
        return json.dumps(head, separators=(",", ":")).encode()

    api.answers[PATH] = lambda query: (200, listed(query))
    kept = Kept(api)
    assert kept.hear(5) == ["put a", "put b", "put c", "put z", "trouble 1 are left out, each of more than 4 MiB"]
    api.events.put(b'{"type": "MODIFIED", "object": "' + b"x" * (MOST_OBJECT_BYTES + 70_000) + b'"}')
    api.events.put({"type": "ADDED", "object": pod("late", "9")})
    assert kept.hear(2) == ["trouble 2 are left out, each of more than 4 MiB", "put late"]
    kept.stop.set()


def test_a_list_of_another_form_is_not_read_to_its_end(api: FakeApi) -> None:
    api.answers[PATH] = 200, b'{"items": [' + b"x" * MOST_OBJECT_BYTES
    with pytest.raises(AnswerTooLargeError, match="more than 4194304 bytes"):
        list(api.reader().pages(PODS))
