"""What a search leads to: a GpuShare and two pods that the webhook admits, with the grants that were measured."""

import copy
from typing import Any

import jsonpatch
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.gpushare import GpuShare
from gpushare.grant.model import resolve
from gpushare.kubectl.rules.trial.apply import (
    annotated,
    annotations_of,
    as_yaml,
    pod_of,
    share_beside,
    template_of,
    with_class,
)
from gpushare.kubectl.rules.trial.cases import TrialMode
from gpushare.kubectl.rules.trial.protect import JobWay
from gpushare.kubectl.rules.trial.rows import rows_of
from gpushare.webhook.pods import admit_pod, check_pod
from gpushare.webhook.review import AdmissionData, Admitted
from gpushare.webhook.shares import validate_share
from tests.unit.kubectl.rules.trial.made_up import case, measured

WAYS = [JobWay(False, 100), JobWay(False, 25), JobWay(True, 100), JobWay(True, 30)]


def granted(share: dict[str, Any], pod: dict[str, Any], namespace: str = "team") -> tuple[int, str | None, int]:
    """(threads, class, percent beside protected) of an admitted pod of an admitted share."""
    answer = validate_share(share, None)
    assert isinstance(answer, Admitted), answer
    model = GpuShare.model_validate(share | {"status": {"gpuMemoryMib": 143771}})
    data = AdmissionData(namespace, {}, {model.name: model}, [model.name], "gpushare-system")
    admitted = admit_pod(pod, data)
    assert isinstance(admitted, Admitted), admitted
    stored = jsonpatch.apply_patch(copy.deepcopy(pod), [change.operation() for change in admitted.changes])
    assert isinstance(check_pod(stored, data), Admitted)
    grant = resolve(model, pod["metadata"].get("annotations") or {}, namespace)
    return grant.threads, grant.client_class, grant.threads_beside_protected


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_new_share_and_its_pods_are_admitted_with_what_was_measured(way: JobWay) -> None:
    alone = [measured(case(TrialMode.ALONE, *copies), 100.0, memory=2000) for copies in ((1, 0), (0, 1))]
    share = share_beside(way, rows_of(alone), "trial", "NVIDIA H200", 143771)
    assert share is not None
    pods = {
        name: pod_of(
            name,
            template_of(name, [f"./{name}"]),
            name,
            "trial",
            annotations_of(way, name == "service", way.best_effort),
        )
        for name in ("service", "job")
    }
    job = granted(share, pods["job"])
    if way.best_effort:
        assert granted(share, pods["service"])[1] == "Protected"
        assert job == (100, "BestEffort", way.percent)
    else:
        assert job == (way.percent, None, 0)


@pytest.mark.parametrize("way", [way for way in WAYS if way.percent <= 50], ids=str)
def test_a_pod_of_ones_own_keeps_all_but_its_gpu_and_its_class(way: JobWay) -> None:
    template = {
        "metadata": {
            "annotations": {
                "gpushare.dev/class": "Normal",
                "gpushare.dev/threads": "50",
                "threads.gpushare.dev/app": "40",
                "team": "search",
            }
        },
        "spec": {
            "restartPolicy": "OnFailure",
            "containers": [
                {"name": "app", "image": "app", "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "2"}}},
                {"name": "log", "image": "log"},
            ],
        },
    }
    before = copy.deepcopy(template)
    clients = {
        "perGpu": 4,
        "threads": {"default": 50, "max": 50},
        "memory": {"default": "8Gi"},
        "classes": {"bestEffort": {"threadsBesideProtected": 100}, "protected": {"namespaces": ["team"]}},
    }
    share = {
        "apiVersion": "gpushare.dev/v1alpha1",
        "kind": "GpuShare",
        "metadata": {"name": "s"},
        "spec": {"clients": clients},
    }
    pod = pod_of("job", template, "app", "s", annotations_of(way, service=False, classes=True))
    assert template == before
    assert pod["metadata"]["annotations"]["team"] == "search"
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "2", "gpushare.dev/s": 1}
    threads, client_class, beside = granted(with_class(share, way, "team"), pod)
    if way.best_effort:
        assert (client_class, beside) == ("BestEffort", way.percent)
    else:
        assert (threads, client_class, beside) == (way.percent, "Normal", 0)
    service = pod_of("service", template, "app", "s", annotations_of(way, service=True, classes=True))
    assert granted(with_class(share, way, "team"), service)[1] == ("Protected" if way.best_effort else "Normal")


def test_annotations_of_one_container_do_not_win_over_what_is_tried() -> None:
    template = {"metadata": {"annotations": {"threads.gpushare.dev/app": "90"}}, "spec": {}}
    assert annotated(template, "app", {"gpushare.dev/threads": "10"})["metadata"]["annotations"] == {
        "gpushare.dev/threads": "10"
    }


SCALARS = st.one_of(st.text(), st.integers(), st.booleans(), st.none())
VALUES = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3))
)


@given(st.lists(st.dictionaries(st.text(), VALUES, min_size=1, max_size=4), min_size=1, max_size=3))
def test_what_is_printed_reads_as_the_same_objects(objects: list[dict[str, Any]]) -> None:
    assert list(yaml.safe_load_all(as_yaml(objects))) == objects
