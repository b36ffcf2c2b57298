"""How the page reaches the API server, and what it makes of refusals, silence and answers without end."""

from collections.abc import Iterator
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path

import pytest

from gpushare.controller.webhook_certificates.authority import BUNDLE, renewed_authority
from gpushare.kube.resources import KubeError
from gpushare.kubectl.api import ApiReader, of_a_pod, through_kubectl
from gpushare.kubectl.cluster import UnreachableError
from tests.unit.kubectl.page.fake_api import FakeApi, fake_api, status
from tests.unit.kubectl.page.stand_in import kubectl_for_nobody


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with fake_api() as server:
        yield server


def test_an_object_is_read_with_its_query(api: FakeApi) -> None:
    api.answers["/api/v1/pods"] = {"items": []}
    assert api.reader().read("/api/v1/pods", {"fieldSelector": "a=b,c"}) == {"items": []}
    assert api.asked == [("/api/v1/pods", {"fieldSelector": "a=b,c"})]


def test_a_refusal_has_the_api_servers_words(api: FakeApi) -> None:
    api.answers["/x"] = 403, status("Forbidden", "you may not")
    with pytest.raises(KubeError, match="Forbidden: you may not") as refusal:
        api.reader().get("/x")
    assert refusal.value.status == 403


def test_what_kubectls_proxy_says_without_a_cluster_is_one_sentence(api: FakeApi) -> None:
    api.answers["/x"] = 502, b"dial tcp 10.0.0.1:443:\n connection refused\n"
    with pytest.raises(UnreachableError, match=r"^no cluster: dial tcp 10.0.0.1:443: connection refused$"):
        api.reader().get("/x")


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"\xff", b""])
def test_an_answer_that_is_no_object_is_refused(api: FakeApi, body: bytes) -> None:
    api.answers["/x"] = 200, body
    with pytest.raises(UnreachableError):
        api.reader().read("/x")


def test_an_answer_without_end_is_not_read_to_its_end(api: FakeApi) -> None:
    api.answers["/x"] = 200, b"x" * 100_000
    with pytest.raises(UnreachableError, match="more than 1000 bytes"):
        api.reader().get("/x", most=1000)


def test_who_does_not_listen_is_unreachable() -> None:
    with fake_api() as server:
        port = server.server_port
    reader = ApiReader(lambda seconds: HTTPConnection("127.0.0.1", port, timeout=seconds), dict)
    with pytest.raises(UnreachableError, match="no cluster"):
        reader.get("/x")


def kubectl(folder: Path, script: str) -> str:
    """A stand-in for kubectl."""
    stand_in = folder / "kubectl"
    stand_in.write_text(f"#!/bin/sh\n{script}\n")
    stand_in.chmod(0o755)
    return str(stand_in)


def test_kubectl_proxy_serves_us_alone_and_reads_only(tmp_path: Path) -> None:
    program = kubectl_for_nobody(tmp_path)
    with through_kubectl(["--context=a"], str(program)) as api:
        assert api.read("/api")["items"] == []
        asked = (tmp_path / "asked").read_text().split()
        socket = Path(asked[1].removeprefix("--unix-socket="))
        assert socket.parent.stat().st_mode & 0o077 == 0
    assert (asked[0], asked[-1]) == ("proxy", "--context=a")
    assert "--reject-methods=^(POST|PUT|PATCH|DELETE|OPTIONS|HEAD|CONNECT|TRACE)$" in asked
    assert not socket.parent.exists()


def test_a_kubectl_without_a_cluster_says_so(tmp_path: Path) -> None:
    program = kubectl(tmp_path, 'echo "error: context \\"a\\" does not exist" >&2; exit 1')
    with pytest.raises(UnreachableError, match='no cluster: context "a" does not exist'), through_kubectl([], program):
        pass
    with pytest.raises(UnreachableError, match="is not on the PATH"), through_kubectl([], "kubectl-of-nobody"):
        pass


def test_in_a_pod_each_request_has_the_token_of_now(tmp_path: Path) -> None:
    authority = renewed_authority({}, {}, datetime.now(UTC))
    assert authority is not None
    (tmp_path / "ca.crt").write_bytes(authority[BUNDLE])
    (tmp_path / "token").write_text("one\n")
    reader = of_a_pod("127.0.0.1", 1, tmp_path)
    headers = reader.headers()
    (tmp_path / "token").write_text("two\n")
    assert (headers, reader.headers()) == ({"Authorization": "Bearer one"}, {"Authorization": "Bearer two"})
