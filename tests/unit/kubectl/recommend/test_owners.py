"""The patch of what makes a pod that belongs on a GPU of its own, where it is known and can be changed."""

import json
from concurrent.futures import Future
from typing import Any

import pytest

from gpushare.kubectl.cluster import Cluster
from gpushare.kubectl.recommend.owners import with_owners
from gpushare.kubectl.rules.recommend.advice import Advice, AdviceKind
from gpushare.kubectl.rules.recommend.sureness import Sureness
from tests.unit.kubectl.cluster_objects import pod

ADVICE = Advice(AdviceKind.OWN_GPU, "team", "ml/serve", "a slot", "a whole GPU", "why", Sureness.MEDIUM)
POD = "serve-5d4f7b9c8d-x2k4p"


class OneNamespace(Cluster):
    """A cluster with these pods, and a ReplicaSet that a Deployment owns."""

    def __init__(self, *pods: Any) -> None:
        super().__init__()
        self._pods = pods

    def items(self, *_: Any, **__: Any) -> Any:
        return done(list(self._pods))

    def find(self, *_: Any) -> Any:
        return done({"metadata": {"ownerReferences": [owner("Deployment", "serve")]}})


def done(value: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def owner(kind: str, name: str, controller: bool = True) -> dict[str, Any]:
    return {"kind": kind, "name": name, "controller": controller}


def owned(kind: str, name: str = "serve", pod_name: str = POD, asks: str = "team", **more: Any) -> Any:
    return pod(pod_name, asks=asks, metadata={"ownerReferences": [owner(kind, name, **more)]})


@pytest.mark.parametrize(
    ("case", "objects", "target"),
    [
        ("a Deployment, by its ReplicaSet", owned("ReplicaSet", "serve-5d4f7b9c8d"), "deployment/serve"),
        ("a StatefulSet", owned("StatefulSet", pod_name="serve-0"), "statefulset/serve"),
        ("a DaemonSet", owned("DaemonSet", pod_name="serve-x2k4p"), "daemonset/serve"),
        ("a Job's template cannot be changed", owned("Job", pod_name="serve-x2k4p"), ""),
        ("nobody's pod", pod("serve"), ""),
        ("another workload", owned("StatefulSet", pod_name="other-0"), ""),
        ("a pod without a slot of the share", owned("StatefulSet", pod_name="serve-0", asks="other"), ""),
        ("a name that would be more than a name", owned("StatefulSet", "serve; reboot", pod_name="serve-0"), ""),
        ("a name that would be an option", owned("StatefulSet", "--all", pod_name="serve-0"), ""),
        ("an owner that is no controller", owned("StatefulSet", pod_name="serve-0", controller=False), ""),
    ],
)
def test_the_line_names_what_makes_the_pods(case: str, objects: Any, target: str) -> None:
    (advice,) = with_owners(OneNamespace(objects), [ADVICE])
    words = advice.command(["--context=far"]).split(" ")
    assert words[:5] == (["kubectl", "--context=far", "-n", "ml", "patch"] if target else [""]), case
    if target:
        assert words[5] == target, case


def test_the_slot_gives_way_to_a_whole_gpu() -> None:
    (advice,) = with_owners(OneNamespace(owned("ReplicaSet")), [ADVICE])
    assert advice.template is not None
    (container,) = advice.template.body()["spec"]["template"]["spec"]["containers"]
    amounts = {"gpushare.dev/team": None, "nvidia.com/gpu": "1"}
    assert container == {"name": "main", "resources": {"limits": amounts, "requests": amounts}}
    assert json.dumps(advice.template.body(), separators=(",", ":")) in advice.command()


def test_other_advice_is_left_as_it_is() -> None:
    memory = Advice(AdviceKind.MEMORY, "team", "team", "a", "b", "why", Sureness.HIGH)
    assert with_owners(OneNamespace(owned("StatefulSet", pod_name="serve-0")), [memory]) == [memory]
