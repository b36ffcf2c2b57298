"""What kubectl answers, and what it means when it fails."""

from pathlib import Path

import pytest

from gpushare.cli.kubectl.cluster import Cluster, UnreachableError, failure, installed, optional
from gpushare.kube.resources import GPU_SHARES, PODS, KubeError


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        ('Error from server (NotFound): nodes "a" not found', 404, 'nodes "a" not found'),
        ("Error from server (Forbidden): pods is forbidden:\nUser cannot", 403, "pods is forbidden:\nUser cannot"),
        ("Warning: v1 is old\nError from server: it broke", 500, "it broke"),
        ('The GpuShare "a" is invalid: spec: no', 422, 'The GpuShare "a" is invalid: spec: no'),
    ],
)
def test_a_refusal_of_the_api_server_is_told_from_a_cluster_that_is_not_there(
    text: str, status: int, message: str
) -> None:
    found = failure(text)
    assert isinstance(found, KubeError)
    assert found.status == status
    assert message in str(found)


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
    found = failure(text)
    assert isinstance(found, UnreachableError)
    assert str(found).startswith(sentence)
    assert "\n" not in str(found)


def stand_in(folder: Path, script: str) -> str:
    program = folder / "kubectl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def test_a_question_is_one_run_of_kubectl_with_the_options_of_the_user(tmp_path: Path) -> None:
    program = stand_in(tmp_path, f'echo "$@" >> {tmp_path}/asked; echo \'{{"items": [{{"a": 1}}]}}\'')
    cluster = Cluster(["--context=other"], program)
    assert cluster.items(PODS, "ml", labelSelector="a=b").result() == [{"a": 1}]
    asked = (tmp_path / "asked").read_text().split()
    assert asked[:3] == ["get", "--raw", "/api/v1/namespaces/ml/pods?labelSelector=a%3Db"]
    assert "--context=other" in asked


@pytest.mark.parametrize(
    ("script", "sentence"),
    [("echo no JSON", "no JSON"), ("echo 'error: no context' >&2; exit 1", "no cluster: no context")],
)
def test_what_kubectl_cannot_do_is_an_error_with_its_words(tmp_path: Path, script: str, sentence: str) -> None:
    with pytest.raises(UnreachableError, match=sentence):
        Cluster(program=stand_in(tmp_path, script)).items(PODS).result()


def test_without_kubectl_its_absence_is_named() -> None:
    with pytest.raises(UnreachableError, match="/nowhere/kubectl is not on the PATH"):
        Cluster(program="/nowhere/kubectl").items(PODS).result()


def test_without_a_context_the_namespace_is_the_default_one(tmp_path: Path) -> None:
    program = stand_in(tmp_path, "echo 'error: current-context must exist in order to minify' >&2; exit 1")
    assert Cluster(program=program).namespace().result() == "default"


def test_the_namespace_is_that_of_the_context(tmp_path: Path) -> None:
    program = stand_in(tmp_path, """echo '{"contexts": [{"context": {"namespace": "ml"}}]}'""")
    assert Cluster(program=program).namespace().result() == "ml"


def test_what_the_user_may_not_read_or_the_cluster_does_not_have_is_none(tmp_path: Path) -> None:
    def asked(reason: str) -> Cluster:
        return Cluster(program=stand_in(tmp_path, f"echo 'Error from server ({reason}): no' >&2; exit 1"))

    assert optional(asked("Forbidden").items(PODS)) is None
    assert asked("NotFound").find(PODS, "a", "ml").result() is None
    with pytest.raises(UnreachableError, match="gpushare is not installed in this cluster"):
        installed(asked("NotFound").items(GPU_SHARES))
    with pytest.raises(KubeError):
        optional(asked("InternalError").items(PODS))
