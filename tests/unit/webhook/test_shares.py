"""GpuShares: what the schema cannot know, each refused with field, value and what to do."""

import copy
from typing import Any

import pytest

from gpushare.webhook.review import Admitted, Denied, Reason
from gpushare.webhook.shares import delete_share, validate_share


def spec(**spec: Any) -> dict[str, Any]:
    clients = {
        "perGpu": 8,
        "threads": {"default": 25, "max": 50},
        "memory": {"default": "16Gi", "max": "16Gi"},
        **spec.pop("clients", {}),
    }
    return {"metadata": {"name": "inference"}, "spec": {"clients": clients, **spec}}


def memory(**fields: Any) -> dict[str, Any]:
    return spec(clients={"memory": fields})


DEFAULT = "spec.clients.memory.default"


@pytest.mark.parametrize(
    ("share", "sentence"),
    [
        pytest.param(
            memory(default="1234567890123456Mi"),
            f'{DEFAULT}: "1234567890123456Mi" is not a memory quantity; write it like "16Gi" or "1536Mi"',
            id="no quantity",
        ),
        pytest.param(
            memory(default=""),
            f'{DEFAULT}: "" is not a memory quantity; write it like "16Gi" or "1536Mi"',
            id="no memory",
        ),
        pytest.param(memory(default="0.3"), f'{DEFAULT}: "0.3" is not a whole number of bytes', id="part of a byte"),
        pytest.param(
            spec(clients={"memory": {"default": "512Mi"}, "threads": {}}),
            f'{DEFAULT}: "512Mi" is below the 520Mi that one CUDA context takes at 100 percent of the threads'
            " (spec.clients.threads.max); write at least 520Mi, or lower threads.max",
            id="less than a context takes",
        ),
        pytest.param(
            spec(clients={"memory": {"default": "1Gi"}, "processes": 4}),
            f'{DEFAULT}: "1Gi" is below the 1392Mi that 4 CUDA contexts take at 50 percent of the threads'
            " (spec.clients.threads.max); write at least 1392Mi, or lower threads.max",
            id="less than its processes' contexts take",
        ),
        pytest.param(
            spec(gpus={"products": ["NVIDIA H200", " "]}),
            'spec.gpus.products[1]: " " is blank or has blanks at its ends, so it matches no GPU; write the name as'
            " `nvidia-smi -L` does",
            id="a blank product",
        ),
        pytest.param(
            spec(nodeSelector={"matchLabels": {"-pool": "gpu"}}),
            'spec.nodeSelector.matchLabels: "-pool" is not a label key; write it like topology.kubernetes.io/zone',
            id="no label key",
        ),
        pytest.param(
            spec(nodeSelector={"matchLabels": {"pool": "a b"}}),
            "spec.nodeSelector.matchLabels[pool]: \"a b\" is not a label value; use letters, digits, '-', '_' and '.',"
            " with a letter or digit at both ends",
            id="no label value",
        ),
        pytest.param(
            spec(clients={"perGpu": 0}),
            'spec.clients.perGpu: "0": Input should be greater than or equal to 1',
            id="what the schema should have caught",
        ),
    ],
)
def test_a_share_is_refused_for(share: dict[str, Any], sentence: str) -> None:
    assert validate_share(share, None) == Denied((sentence,), frozenset([Reason.SHARE_SPEC]))


def test_all_problems_are_reported_at_once() -> None:
    answer = validate_share(memory(default="0.3", max="0.7"), None)
    assert isinstance(answer, Denied)
    assert [problem.split(":")[0] for problem in answer.problems] == [DEFAULT, "spec.clients.memory.max"]


@pytest.mark.parametrize(
    "share",
    [
        spec(),
        memory(default="512Mi"),
        memory(default="1.5Gi"),
        spec(
            nodeSelector={"matchLabels": {"topology.kubernetes.io/zone": "", "pool": "gpu"}},
            allowedNamespaces={"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]},
            gpus={"products": ["NVIDIA H200"]},
        ),
    ],
)
def test_a_sound_share_passes_without_a_word(share: dict[str, Any]) -> None:
    assert validate_share(share, None) == Admitted()


def test_a_ceiling_that_has_no_effect_warns() -> None:
    assert validate_share(memory(default="8Gi", max="16Gi"), None) == Admitted(
        warnings=(
            'spec.clients.memory.max: "16Gi" has no effect without memory.overcommit:'
            " annotations may only lower memory",
        )
    )
    assert validate_share(memory(default="8Gi", max="16Gi", overcommit=True), None) == Admitted()


def test_more_contexts_than_older_drivers_take_warn() -> None:
    assert validate_share(spec(clients={"perGpu": 49, "memory": {"default": "1Gi"}}), None) == Admitted(
        warnings=(
            "spec.clients.perGpu: driver 590 or newer is needed for 49 contexts on a GPU; GPUs of older drivers "
            "are not taken",
        )
    )


@pytest.mark.parametrize(
    ("share", "status", "words"),
    [
        (
            spec(clients={"perGpu": 60, "memory": {"default": "8Gi"}}),
            {},
            "for each of 60 clients is more than the 288Gi",
        ),
        (spec(clients={"perGpu": 8, "memory": {"default": "16Gi"}}), {"gpuMemoryMib": 81559}, "81559Mi of a GPU"),
        (
            spec(clients={"perGpu": 8, "memory": {"default": "16Gi"}}),
            {"gpuMemoryMib": 81559},
            "no GPU of this share fits any more",
        ),
        (
            spec(clients={"perGpu": 8, "memory": {"default": "10Gi"}}),
            {"gpuMemoryMib": 80 * 1024 + 511},
            "beside 512Mi of MPS itself",
        ),
        (spec(clients={"perGpu": 8, "memory": {"default": "10Gi"}}), {"gpuMemoryMib": 80 * 1024 + 512}, None),
        (
            spec(clients={"memory": {"default": "512Gi"}}, delivery="ResourceClaim"),
            {},
            '"512Gi" is more than the 288Gi',
        ),
        (spec(clients={"perGpu": 8, "memory": {"default": "16Gi"}}), {"gpuMemoryMib": 143155}, None),
        (spec(clients={"perGpu": 60, "memory": {"default": "8Gi", "overcommit": True}}), {}, None),
        (spec(clients={"perGpu": 60, "memory": {"default": "8Gi"}}, delivery="ResourceClaim"), {}, None),
    ],
)
def test_more_memory_than_a_gpu_has_warns(share: dict[str, Any], status: dict[str, Any], words: str | None) -> None:
    answer = validate_share({**share, "status": status}, None)
    assert isinstance(answer, Admitted)
    warnings = [text for text in answer.warnings if text.startswith(f"{DEFAULT}: ")]
    assert [words in text for text in warnings] == ([] if words is None else [True])


def test_an_update_is_judged_like_a_creation() -> None:
    assert isinstance(validate_share(memory(default="0.3"), spec()), Denied)


def test_an_old_share_that_is_unsound_by_now_can_still_lose_its_finalizer() -> None:
    unsound = memory(default="0.3")
    released = copy.deepcopy(unsound)
    released["metadata"]["finalizers"] = []
    assert validate_share(released, unsound) == Admitted()
    released["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
    assert validate_share(released, {"metadata": {}, "spec": {}}) == Admitted()


@pytest.mark.parametrize(("status", "warned"), [("False", True), ("Unknown", True), ("True", False), (None, False)])
def test_who_deletes_a_share_whose_agents_are_silent_is_warned(status: str | None, warned: bool) -> None:
    conditions = [{"type": "Ready", "status": "False"}]
    if status:
        conditions.append({"type": "DeparturesGuarded", "status": status, "message": "node n1: no heartbeat"})
    answer = delete_share({**spec(), "status": {"conditions": conditions}})
    assert [text.endswith("are back: node n1: no heartbeat") for text in answer.warnings] == ([True] if warned else [])


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (spec(clients={"memory": {"default": "8Gi", "limits": {"max": "16Gi"}}}), None),
        (spec(clients={"memory": {"default": "8Gi", "limits": {"max": "40Gi"}}}), "is more than 100 percent of the"),
        (spec(clients={"memory": {"default": "8Gi", "limits": {"max": "40Gi", "overcommitPercent": 200}}}), None),
        (
            spec(clients={"memory": {"default": "8Gi", "limits": {"max": "16Gi"}}}, delivery="ResourceClaim"),
            "has no effect with overcommitPercent 100",
        ),
    ],
)
def test_limits_that_no_gpu_or_no_claim_can_have_warn(share: dict[str, Any], words: str | None) -> None:
    answer = validate_share(share, None)
    assert isinstance(answer, Admitted)
    assert [words in warning for warning in answer.warnings] == ([True] if words else [])


def test_limits_that_cannot_be_read_are_refused_by_field() -> None:
    limits = {"max": "24GB", "default": "0.3"}
    answer = validate_share(memory(default="8Gi", limits=limits), None)
    assert isinstance(answer, Denied)
    assert sorted(problem.split(":")[0] for problem in answer.problems) == [
        "spec.clients.memory.limits.default",
        "spec.clients.memory.limits.max",
    ]


EVERYTHING = {"threads": {"default": 100}}


@pytest.mark.parametrize(
    ("share", "warned"),
    [
        pytest.param(spec(clients=EVERYTHING), True, id="eight clients that may have all SMs each"),
        pytest.param(spec(clients=EVERYTHING | {"classes": {}}), False, id="best effort may give way"),
        pytest.param(spec(clients=EVERYTHING | {"perGpu": 1}), False, id="one client has nobody to starve"),
        pytest.param(spec(clients=EVERYTHING, delivery="ResourceClaim"), False, id="claims add up to 100 percent"),
        pytest.param(
            spec(clients={"threads": {"default": 100, "overcommit": 2}}, delivery="ResourceClaim"), True, id="to 200"
        ),
        pytest.param(spec(clients={"threads": {"default": 99}}), False, id="a cap of its own"),
    ],
)
def test_a_share_whose_clients_may_starve_each_other_is_warned_about(share: dict[str, Any], warned: bool) -> None:
    answer = validate_share(share, None)
    assert isinstance(answer, Admitted)
    told = [text for text in answer.warnings if text.startswith('spec.clients.threads.default: "100" for each of 8')]
    assert bool(told) is warned
    assert all("classes" in text for text in told)
