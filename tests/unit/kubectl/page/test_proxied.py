"""The page as it is served in the cluster, and how its pod asks agents."""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPConnection

import pytest

from gpushare.kubectl.cluster import UnreachableError
from gpushare.kubectl.page.cluster.scrapes import AgentPod
from gpushare.kubectl.page.content.feed import Feed
from gpushare.kubectl.page.in_cluster import ask_agent
from gpushare.kubectl.page.serving.pages import HEADERS, Pages
from gpushare.kubectl.page.serving.proxied import serving_in_cluster
from tests.unit.kubectl.page.fake_api import fake_api


def ask(
    port: int, method: str, path: str, host: str, more: Mapping[str, str] | None = None
) -> tuple[int, dict[str, str]]:
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, headers={"Host": host} | dict(more or {}))
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders())
    finally:
        connection.close()


async def test_a_pods_page_answers_under_the_names_it_was_given(free_port: int) -> None:
    pages = Pages(Feed(), lambda _: None, lambda *_: None, {}, ["gpus.example.com"])
    expected = [
        ("GET", "/", "gpus.example.com", HTTPStatus.OK),
        ("HEAD", "/page.js", "gpus.example.com:443", HTTPStatus.OK),
        ("GET", "/changes?since=0", "gpus.example.com", HTTPStatus.OK),
        ("GET", "/pod?namespace=a&name=b", "gpus.example.com", HTTPStatus.NOT_FOUND),
        ("GET", "/", "evil.example", HTTPStatus.MISDIRECTED_REQUEST),
        ("DELETE", "/changes", "gpus.example.com", HTTPStatus.METHOD_NOT_ALLOWED),
        ("GET", "/%2e%2e/pages.py", "gpus.example.com", HTTPStatus.NOT_FOUND),
    ]
    async with serving_in_cluster(pages, free_port):
        for method, path, host, status in expected:
            code, headers = await asyncio.to_thread(ask, free_port, method, path, host)
            assert code == status, path
            assert HEADERS.items() <= headers.items()
            assert "Server" not in headers


async def test_what_is_large_is_compressed_for_who_takes_it(free_port: int) -> None:
    pages = Pages(Feed(), lambda _: None, lambda *_: None, {}, ["localhost"])
    async with serving_in_cluster(pages, free_port):
        _, plain = await asyncio.to_thread(ask, free_port, "GET", "/page.js", "localhost")
        _, packed = await asyncio.to_thread(ask, free_port, "GET", "/page.js", "localhost", {"Accept-Encoding": "gzip"})
    assert "Content-Encoding" not in plain
    assert packed["Content-Encoding"] == "gzip"
    assert int(packed["Content-Length"]) < int(plain["Content-Length"]) / 2


def test_an_agent_is_asked_at_its_pods_address() -> None:
    with fake_api() as api:
        api.answers["/metrics"] = 200, b"gpushare_nvml_up 1\n"
        agent = AgentPod("gpushare-system", "agent", "n1", api.server_port, "127.0.0.1")
        assert ask_agent(agent) == "gpushare_nvml_up 1\n"
        api.answers["/metrics"] = 500, b"broken"
        with pytest.raises(UnreachableError, match="status 500"):
            ask_agent(agent)
    with pytest.raises(UnreachableError, match="does not answer"):
        ask_agent(agent)
    with pytest.raises(UnreachableError, match="no address yet"):
        ask_agent(AgentPod("gpushare-system", "agent", "n1", 1, ""))
