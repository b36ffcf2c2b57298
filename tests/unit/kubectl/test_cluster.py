"""What kubectl answers, and what it means when it fails."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpushare.kube.resources import CORE_EVENTS, GPU_SHARES, PODS, KubeError
from gpushare.kubectl.api import MOST_OBJECT_BYTES
from gpushare.kubectl.cluster import Cluster, installed, optional
from gpushare.kubectl.failures import UnreachableError, of_answer, of_kubectl
from gpushare.kubectl.kept import LONGEST_MESSAGE
from tests.unit.kubectl import stand_in


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        ('Error from server (NotFound): nodes "a" not found', 404, 'nodes "a" not found'),
        ("Error from server (Forbidden): pods is forbidden:\nUser cannot", 403, "pods is forbidden:\nUser cannot"),
        ("Warning: v1 is old\nError from server: it broke", 500, "it broke"),
        ('The GpuShare "a" is invalid: spec: no', 422, 'The GpuShare "a" is invalid: spec: no'),
    ],
)
def test_a_refusal_is_told_from_an_unreachable_cluster(text: str, status: int, message: str) -> None:
    error = of_kubectl(text)
    assert isinstance(error, KubeError)
    assert error.status == status
    assert message in str(error)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('error: context "a" does not exist', 'no cluster: context "a" does not exist'),
        (
            "E1122 22:10:00.1 1 memcache.go:265] couldn't get\n"
            "The connection to the server localhost:8080 was refused - did you specify the right host or port?",
            "no cluster: kubectl has no context; set KUBECONFIG",
        ),
        ("Unable to connect to the server: dial tcp:\nno route", "no cluster: Unable to connect to the server: dial"),
        ("error: EOF", "no cluster: the context has no credentials"),
        ("", "no cluster: kubectl failed without a word"),
    ],
)
def test_without_a_cluster_there_is_one_plain_sentence(text: str, sentence: str) -> None:
    error = of_kubectl(text)
    assert isinstance(error, UnreachableError)
    assert str(error).startswith(sentence)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("status", "text", "kind", "says"),
    [
        (
            403,
            '{"kind": "Status", "reason": "Forbidden", "message": "pods is forbidden"}',
            KubeError,
            "Forbidden: pods",
        ),
        (500, '{"kind": "Status", "reason": "InternalError", "message": "no endpoints"}', KubeError, "no endpoints"),
        (404, "404 page not found\n", KubeError, "NotFound: 404 page not found"),
        (401, '{"kind": "Status", "reason": "Unauthorized"}', UnreachableError, "does not accept the context's cred"),
        (500, "dial tcp 10.0.0.1:6443: i/o timeout\n", UnreachableError, "no cluster: dial tcp 10.0.0.1:6443: i/o"),
        (500, "dial tcp 127.0.0.1:8080: connect: connection refused", UnreachableError, "kubectl has no context"),
        (500, "dial tcp [::1]:8080: connect: connection refused", UnreachableError, "kubectl has no context"),
        (502, "<html>Bad Gateway</html>", UnreachableError, "no cluster: <html>Bad Gateway</html>"),
    ],
)
def test_an_answer_of_the_api_server_is_told_from_one_of_the_proxy_alone(
    status: int, text: str, kind: type, says: str
) -> None:
    error = of_answer(status, text)
    assert type(error) is kind
    assert says in str(error)
    assert getattr(error, "status", status) == status


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Makes clusters with a stand-in for kubectl."""
    made: list[Cluster] = []

    def make(answers: Any = None, flags: Sequence[str] = (), **how: str) -> Cluster:
        made.append(Cluster(flags, stand_in.make(tmp_path, answers, **how)))
        return made[-1]

    yield make
    for connected in made:
        connected.close()


LIST = "GET /api/v1/namespaces/ml/pods?labelSelector=a%3Db"


def test_all_requests_are_one_run_of_kubectl_with_the_users_options(
    tmp_path: Path, cluster: Callable[..., Cluster]
) -> None:
    connected = cluster({LIST: (200, {"items": [{"a": 1}]})}, ["--context=other"])
    items, version = connected.items(PODS, "ml", labelSelector="a=b"), connected.read("/version")
    assert (items.result(), version.result()) == ([{"a": 1}], {"items": []})
    first, *questions = stand_in.asked(tmp_path)
    assert "--context=other" in first
    assert sorted(questions) == [LIST, "GET /version"]


def test_of_an_event_what_is_shown_is_kept_and_one_too_large_is_told(
    cluster: Callable[..., Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    event = {"metadata": {"name": "a"}, "message": "x" * 100_000, "note": "y"}
    head = '{"kind":"EventList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":['
    connected = cluster(
        {
            "GET /api/v1/events": (200, {"items": [event]}),
            "GET /api/v1/namespaces/ml/events": (200, head + "x" * MOST_OBJECT_BYTES),
        }
    )
    [kept] = connected.items(CORE_EVENTS).result()
    assert len(kept["message"]) == LONGEST_MESSAGE + 1
    assert "note" not in kept
    assert connected.items(CORE_EVENTS, "ml").result() == []
    assert capsys.readouterr().err == "Left out: 1 of events, each of more than 4 MiB\n"


def test_a_dry_run_says_that_it_is_one(tmp_path: Path, cluster: Callable[..., Cluster]) -> None:
    connected = cluster()
    connected.try_create(GPU_SHARES, {"kind": "GpuShare"}).result()
    connected.try_patch(GPU_SHARES, "a", [{"op": "remove", "path": "/spec"}]).result()
    path = "/apis/gpushare.dev/v1alpha1/gpushares"
    assert stand_in.asked(tmp_path)[1:] == [
        f'POST {path}?dryRun=All application/json {{"kind": "GpuShare"}}',
        f'PATCH {path}/a?dryRun=All application/json-patch+json [{{"op": "remove", "path": "/spec"}}]',
    ]


def test_what_is_no_json_is_an_error_with_its_words(cluster: Callable[..., Cluster]) -> None:
    with pytest.raises(UnreachableError, match="no JSON: 'hello'"):
        cluster({"GET /api/v1/pods": (200, "hello")}).items(PODS).result()


def test_what_kubectl_cannot_do_is_an_error_with_its_words(cluster: Callable[..., Cluster]) -> None:
    with pytest.raises(UnreachableError, match="no cluster: no context"):
        cluster(fails="error: no context").items(PODS).result()


def test_without_kubectl_its_absence_is_named() -> None:
    connected = Cluster(program="/nowhere/kubectl")
    for asked in (lambda: connected.items(PODS).result(), lambda: connected.run("logs", "a")):
        with pytest.raises(UnreachableError, match="/nowhere/kubectl is not on the PATH"):
            asked()
    connected.close()


def test_without_a_context_the_namespace_is_the_default_one(cluster: Callable[..., Cluster]) -> None:
    connected = cluster(fails="error: current-context must exist in order to minify")
    assert connected.namespace().result() == "default"


def test_the_namespace_is_that_of_the_context_and_needs_no_proxy(
    tmp_path: Path, cluster: Callable[..., Cluster]
) -> None:
    assert cluster().namespace().result() == "ml"
    assert [line.split()[0] for line in stand_in.asked(tmp_path)] == ["config"]


def test_what_the_user_may_not_read_or_the_cluster_does_not_have_is_none(cluster: Callable[..., Cluster]) -> None:
    def refused(status: int, reason: str) -> tuple[int, Any]:
        return status, {"kind": "Status", "reason": reason, "message": "no"}

    connected = cluster(
        {
            "GET /api/v1/pods": refused(403, "Forbidden"),
            "GET /api/v1/namespaces/ml/pods/a": refused(404, "NotFound"),
            "GET /apis/gpushare.dev/v1alpha1/gpushares": (404, "404 page not found"),
            "GET /api/v1/namespaces/ml/pods": refused(500, "InternalError"),
        }
    )
    assert optional(connected.items(PODS)) is None
    assert connected.find(PODS, "a", "ml").result() is None
    with pytest.raises(UnreachableError, match="gpushare is not installed in this cluster"):
        installed(connected.items(GPU_SHARES))
    with pytest.raises(KubeError):
        optional(connected.items(PODS, "ml"))
