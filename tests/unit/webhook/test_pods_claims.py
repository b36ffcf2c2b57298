"""Pods that use claims: the same guards as for slots, and no variables, which only the node can know."""

from typing import Any

import pytest

from gpushare.webhook.pods import admit_pod
from gpushare.webhook.review import AdmissionData, Admitted
from tests.unit.webhook.test_claims import claim, exactly
from tests.unit.webhook.test_pods import admitted, container, pod, refused, share

SPECS = {
    "mine": claim(exactly())["spec"],
    "other": claim(exactly())["spec"],
    "nvidia": claim(exactly("gpu.nvidia.com"))["spec"],
    "two": claim(exactly(), exactly())["spec"],
    "foreign": claim(exactly("gpu.example.com"))["spec"],
}


def data() -> AdmissionData:
    known = share(delivery="ResourceClaim")
    return AdmissionData("shop", {}, {known.name: known}, [known.name], "gpushare-system", SPECS)


def user(*claims: str, limits: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    resources = {"claims": [{"name": name} for name in claims], "limits": limits or {}}
    return container(None, resources=resources, **fields)


def test_a_container_with_a_claim_gets_the_hook_alone() -> None:
    (client,) = admitted(pod(user("mine")), data())["spec"]["containers"]
    assert client == user("mine") | {"lifecycle": {"preStop": {"sleep": {"seconds": 2}}}}


def test_a_second_pass_adds_nothing() -> None:
    patched = admitted(pod(user("mine")), data())
    assert admitted(patched, data()) == patched


@pytest.mark.parametrize("name", ["foreign", "unheard-of", "nvidia"])
def test_a_pod_with_others_claims_is_never_touched(name: str) -> None:
    body = pod(user(name, env=[{"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/mine"}]))
    assert admitted(body, data()) == body


def test_of_two_containers_only_the_one_with_the_claim_is_touched() -> None:
    first, second = admitted(pod(user(), user("mine")), data())["spec"]["containers"]
    assert (first, "lifecycle" in second) == (user(), True)


@pytest.mark.parametrize(
    ("containers", "problem"),
    [
        (
            [user("mine", "other")],
            'spec.containers[0].resources.claims: "mine", "other": a container reaches one GPU by one claim of'
            " gpushare's; keep one of them",
        ),
        (
            [user("mine", limits={"gpushare.dev/inference": "1"})],
            'spec.containers[0].resources.claims: "mine" beside gpushare.dev/inference: a container reaches one GPU by'
            " one of the two; keep one",
        ),
        (
            [user("mine"), user("mine")],
            'spec.containers[1].resources.claims: "mine" is used by spec.containers[0] already: a claim is one'
            " container's; write another entry in spec.resourceClaims",
        ),
        (
            [user("two")],
            'spec.containers[0].resources.claims: "two" has several requests: a claim of gpushare\'s classes has'
            " exactly one",
        ),
        (
            [user("mine", "nvidia")],
            'spec.containers[0].resources.claims: "nvidia" is a claim of DeviceClass "gpu.nvidia.com": a whole NVIDIA'
            " GPU beside gpushare's claim would bypass its limits; keep one of the two",
        ),
        (
            [user("mine", limits={"nvidia.com/gpu": "1"})],
            "spec.containers[0].resources.limits[nvidia.com/gpu]: a whole NVIDIA GPU beside a slot would bypass its"
            " limits; keep one of the two",
        ),
        (
            [user("mine", env=[{"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "100"}])],
            'spec.containers[0].env[CUDA_MPS_ACTIVE_THREAD_PERCENTAGE]: "100": gpushare sets this variable from the'
            " grant; remove it",
        ),
    ],
)
def test_what_would_bypass_or_double_a_claim_is_refused(containers: list[dict[str, Any]], problem: str) -> None:
    assert refused(pod(*containers), data()) == [problem]


def test_an_init_container_with_a_claim_must_be_a_sidecar() -> None:
    body = pod(user())
    body["spec"]["initContainers"] = [user("mine")]
    (problem,) = refused(body, data())
    assert problem.startswith('spec.initContainers[0].resources.claims: "mine": an init container that ends cannot use')
    body["spec"]["initContainers"] = [user("mine", restartPolicy="Always")]
    assert "lifecycle" in admitted(body, data())["spec"]["initContainers"][0]


def test_annotations_are_said_to_have_no_effect_on_claims() -> None:
    answer = admit_pod(pod(user("mine"), annotations={"gpushare.dev/threads": "10"}), data())
    assert isinstance(answer, Admitted)
    assert answer.warnings == (
        "metadata.annotations[gpushare.dev/threads]: has no effect on claims: write it as the claim's capacity",
    )


def test_a_claims_pod_is_refused_the_class_that_its_share_denies() -> None:
    known = share(delivery="ResourceClaim", clients={"classes": {"allowed": ["Normal", "BestEffort"]}})
    closed = AdmissionData("shop", {}, {known.name: known}, [known.name], "gpushare-system", SPECS)
    (problem,) = refused(pod(user("mine"), annotations={"gpushare.dev/class": "Protected"}), closed)
    assert '"Protected" is not a class that GpuShare "inference" allows' in problem
    answer = admit_pod(pod(user("mine"), annotations={"gpushare.dev/class": "BestEffort"}), closed)
    assert isinstance(answer, Admitted)
    assert answer.warnings == ()
