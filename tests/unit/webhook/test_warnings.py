"""What a pod is admitted with and is still told: each warning names the field and says what follows."""

from typing import Any

import pytest

from gpushare.api.gpushare import GpuShare
from gpushare.webhook.pods import admit_pod, check_pod
from gpushare.webhook.review import AdmissionData, Admitted
from gpushare.webhook.warnings import MOST_WARNINGS

SLOT = {"gpushare.dev/inference": "1"}
CLAIMED = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "inference.gpushare.dev"}}]}}
KILLED = "one that is killed in mid-kernel ends all clients of its GPU"
UNKNOWN = "is not known and has no effect"
ALL = (
    "a pod may have gpushare.dev/threads, gpushare.dev/memory, gpushare.dev/memory-limit, gpushare.dev/class, "
    "gpushare.dev/threads-beside-protected"
)


def warnings(
    *containers: dict[str, Any],
    annotations: dict[str, str] | None = None,
    claims: dict[str, Any] | None = None,
    memory: dict[str, Any] | None = None,
    **spec: Any,
) -> tuple[str, ...]:
    share = GpuShare.model_validate(
        {
            "metadata": {"name": "inference"},
            "spec": {"clients": {"perGpu": 8, "memory": memory or {"default": "8Gi"}}},
            "status": {"gpuMemoryMib": 143155},
        }
    )
    data = AdmissionData("shop", {}, {"inference": share}, ["inference"], "gpushare-system", claims or {})
    listed = list(containers) or [client()]
    pod = {"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": listed, **spec}}
    answer = admit_pod(pod, data)
    assert isinstance(answer, Admitted), answer
    return answer.warnings


def client(limits: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    return {"name": "app", "resources": {"limits": SLOT if limits is None else limits}, **fields}


def hooked(hook: dict[str, Any]) -> dict[str, Any]:
    return client(lifecycle={"preStop": hook})


def environment(**variable: Any) -> dict[str, Any]:
    return client(env=[{"name": "CUDA_VISIBLE_DEVICES", **variable}])


def test_a_pod_of_which_nothing_is_to_be_said_gets_no_warning() -> None:
    assert warnings(annotations={"gpushare.dev/threads": "20", "gpushare.dev/memory": "4Gi", "team": "ml"}) == ()


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("gpushare.dev/thread", 'did you mean "gpushare.dev/threads"?'),
        ("gpushare.dev/Threads", 'did you mean "gpushare.dev/threads"?'),
        ("gpushare.dev/mem", 'did you mean "gpushare.dev/memory"?'),
        ("gpushare.dev/zzz", ALL),
        (f"gpushare.dev/{'memory' * 100}", ALL),
    ],
)
def test_an_unknown_annotation_is_named_with_the_one_meant(name: str, advice: str) -> None:
    (warning,) = warnings(annotations={name: "1"})
    assert warning.startswith(f"metadata.annotations[{name[:100]}")
    assert warning.endswith(f"]: {UNKNOWN}; {advice}")


def test_an_annotation_without_a_slot_has_no_effect() -> None:
    assert warnings(client({"cpu": "1"}), annotations={"gpushare.dev/threads": "20"}) == (
        "metadata.annotations[gpushare.dev/threads]: has no effect: no container asks for a slot"
        " (resources.limits, gpushare.dev/<share>)",
    )


def test_an_annotation_beside_claims_alone_has_no_effect() -> None:
    claimed = {"name": "app", "resources": {"claims": [{"name": "gpu"}]}}
    assert warnings(claimed, annotations={"gpushare.dev/memory": "4Gi"}, claims={"gpu": CLAIMED}) == (
        "metadata.annotations[gpushare.dev/memory]: has no effect on claims: write it as the claim's capacity",
    )


@pytest.mark.parametrize(("grace", "warned"), [(0, True), (1, True), (2, False), (30, False), (None, False)])
def test_too_short_a_grace_period_gets_a_warning_about_neighbours(grace: int | None, warned: bool) -> None:
    expected = (
        f'spec.terminationGracePeriodSeconds: "{grace}" leaves no time to end the CUDA clients of this pod in order,'
        f" and {KILLED}; write at least 4"
    )
    assert warnings(terminationGracePeriodSeconds=grace) == ((expected,) if warned else ())


@pytest.mark.parametrize(
    ("hook", "warned"),
    [
        ({"exec": {"command": ["stop"]}}, True),
        ({"httpGet": {"port": 80}}, True),
        ({"sleep": {"seconds": 0}}, True),
        ({"sleep": {"seconds": 1}}, False),
        ({}, False),
    ],
)
def test_a_hook_in_the_place_of_ours_has_to_take_a_second(hook: dict[str, Any], warned: bool) -> None:
    expected = (
        "spec.containers[0].lifecycle.preStop: takes the place of gpushare's sleep, in which CUDA clients are ended in"
        f" order; {KILLED}: let the hook take at least a second"
    )
    assert warnings(hooked(hook)) == ((expected,) if warned else ())


@pytest.mark.parametrize(
    ("variable", "value"),
    [({"value": "1"}, '"1"'), ({}, '""'), ({"value": "0,1"}, '"0,1"'), ({"valueFrom": {"fieldRef": {}}}, "valueFrom")],
)
def test_a_variable_that_may_hide_the_gpu_is_named(variable: dict[str, Any], value: str) -> None:
    assert warnings(environment(**variable)) == (
        f"spec.containers[0].env[CUDA_VISIBLE_DEVICES]: {value}: the container has one GPU, which is device 0; if it"
        " names another one, CUDA finds none (error 100); remove it",
    )


def test_the_first_device_is_the_containers_gpu() -> None:
    assert warnings(environment(value="0")) == ()


def test_of_containers_without_a_part_of_a_gpu_nothing_is_said() -> None:
    beside = {"name": "side", "lifecycle": {"preStop": {"exec": {}}}, "env": [{"name": "CUDA_VISIBLE_DEVICES"}]}
    assert warnings(client(), beside) == ()
    assert warnings(beside, terminationGracePeriodSeconds=0) == ()


def test_an_overcommitted_share_warns() -> None:
    assert warnings(memory={"default": "32Gi", "overcommit": True}) == (
        'GpuShare "inference" over-commits GPU memory: an allocation within the grant may fail',
    )


def test_however_much_is_wrong_few_warnings_are_given() -> None:
    annotations = {f"gpushare.dev/{number}": "" for number in range(100)}
    assert len(warnings(annotations=annotations)) == MOST_WARNINGS


def test_what_we_add_ourselves_is_not_warned_about() -> None:
    share = GpuShare.model_validate(
        {"metadata": {"name": "inference"}, "spec": {"clients": {"perGpu": 8, "memory": {"default": "8Gi"}}}}
    )
    data = AdmissionData("shop", {}, {"inference": share}, ["inference"], "gpushare-system")
    pod: dict[str, Any] = {"metadata": {"name": "p"}, "spec": {"containers": [client()]}}
    answer = admit_pod(pod, data)
    assert isinstance(answer, Admitted)
    for change in answer.changes:
        place: Any = pod
        *steps, last = change.path.strip("/").split("/")
        for step in steps:
            place = place[int(step)] if isinstance(place, list) else place[step]
        place[last] = change.value
    assert check_pod(pod, data) == Admitted()
