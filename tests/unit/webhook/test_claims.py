"""ResourceClaims and their templates: which are admitted, what a size fills in, and the sentence that refuses."""

import copy
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.gpushare import GpuShare
from gpushare.api.names import ANNOTATION_SCHEDULERS_CLAIM
from gpushare.api.quantity import MIB, parse_memory
from gpushare.webhook.claims import admit_claim, check_claim, shares_claimed
from gpushare.webhook.review import AdmissionData, Admitted, Denied, Reason

SIZES = [{"name": "small", "threads": 10, "memory": "8Gi"}, {"name": "large", "threads": 50, "memory": "64Gi"}]
OWN, SMALL = "inference.gpushare.dev", "small.inference.gpushare.dev"
FIELD = "spec.devices.requests[0].exactly"
ASKED = f"{FIELD}.capacity.requests"


def share(deleting: bool = False, **spec: Any) -> GpuShare:
    clients = {"perGpu": 8, "threads": {"default": 25, "max": 50}, "memory": {"default": "16Gi", "max": "64Gi"}}
    metadata = {"name": "inference", "deletionTimestamp": "2026-11-21T00:00:00Z" if deleting else None}
    spec = {"clients": clients | spec.pop("clients", {}), "delivery": "ResourceClaim", "sizes": SIZES, **spec}
    return GpuShare.model_validate({"metadata": metadata, "spec": spec})


def data(given: GpuShare | None = None, **labels: str) -> AdmissionData:
    known = given or share()
    return AdmissionData("shop", labels, {known.name: known}, [known.name], "gpushare-system")


def claim(*requests: dict[str, Any], annotations: dict[str, str] | None = None, **devices: Any) -> dict[str, Any]:
    listed = [{"name": f"r{number}", **request} for number, request in enumerate(requests)]
    return {"metadata": {"annotations": annotations}, "spec": {"devices": {"requests": listed, **devices}}}


def exactly(name: str = OWN, capacity: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    body = {"deviceClassName": name, "allocationMode": "ExactCount", "count": 1, **fields}
    return {"exactly": body | ({"capacity": {"requests": capacity}} if capacity is not None else {})}


def template(body: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {}, "spec": {"spec": body["spec"]}}


def admitted(body: dict[str, Any], state: AdmissionData | None = None) -> dict[str, Any]:
    """The pod after our patch."""
    answer = admit_claim(body, state or data())
    assert isinstance(answer, Admitted), answer
    patched: dict[str, Any] = jsonpatch.apply_patch(
        copy.deepcopy(body), [change.operation() for change in answer.changes]
    )
    return patched


def refused(body: dict[str, Any], state: AdmissionData | None = None) -> list[str]:
    answer = admit_claim(body, state or data())
    assert isinstance(answer, Denied), answer
    return list(answer.problems)


@pytest.mark.parametrize(
    "body",
    [
        claim(exactly("gpu.example.com", count=8, allocationMode="All")),
        claim({"firstAvailable": [{"deviceClassName": "gpu.example.com"}]}, exactly("other.example.com")),
        {"metadata": {}, "spec": {}},
        claim(exactly("a.b.c.gpushare.dev", count=2)),
    ],
)
def test_claims_of_other_classes_are_never_touched(body: dict[str, Any]) -> None:
    assert shares_claimed(body) == set()
    assert admitted(body) == body


@pytest.mark.parametrize(
    "capacity",
    [
        None,
        {"threads": "50"},
        {"threads": "1", "memory": "512Mi"},
        {"threads": "12500m"},
        {"memory": "64Gi"},
        {"memory": "8e9"},
        {"threads": "50", "memory": "1.5Gi", "clients": "1"},
    ],
)
def test_a_claim_within_the_shares_bounds_is_left_as_it_is(capacity: dict[str, str] | None) -> None:
    body = claim(exactly(capacity=capacity))
    assert admitted(body) == body
    assert admitted(template(body)) == template(body)


@pytest.mark.parametrize("asked", [None, {}, {"threads": "10"}, {"memory": "8192Mi"}])
def test_a_size_fills_in_what_is_missing(asked: dict[str, str] | None) -> None:
    for body, where in ((claim(exactly(SMALL, asked)), "claim"), (template(claim(exactly(SMALL, asked))), "template")):
        patched = admitted(body)
        spec = patched["spec"]["spec"] if where == "template" else patched["spec"]
        requests = spec["devices"]["requests"][0]["exactly"]["capacity"]["requests"]
        assert {name: parse_memory(value) for name, value in requests.items()} == {"threads": 10, "memory": 8 * 2**30}
        assert isinstance(check_claim(patched, data()), Admitted)


def test_what_a_size_fills_in_must_still_be_there_when_the_claim_is_stored() -> None:
    answer = check_claim(claim(exactly(SMALL)), data())
    assert isinstance(answer, Denied)
    assert answer.reasons == {Reason.CHANGED_AFTERWARDS}
    assert answer.problems[0].startswith(f"{FIELD}.capacity: is missing: the claim was changed after")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (
            claim(exactly(), exactly()),
            "spec.devices.requests: 2 requests: a claim of gpushare's classes has exactly one, since a client reaches"
            " one part of one GPU; write a claim for each container",
        ),
        (
            claim(exactly(), exactly("gpu.example.com")),
            "spec.devices.requests: 2 requests: a claim of gpushare's classes has exactly one, since a client reaches"
            " one part of one GPU; write a claim for each container",
        ),
        (
            claim({"firstAvailable": [{"deviceClassName": OWN}]}),
            "spec.devices.requests[0].firstAvailable: a list of alternatives cannot be granted; write one request"
            " under `exactly`",
        ),
        (
            claim(exactly(count=2)),
            f'{FIELD}.count: "2": a client reaches one GPU; write 1, or a claim for each container',
        ),
        (
            claim(exactly(allocationMode="All", count=0)),
            f'{FIELD}.allocationMode: "All": a client reaches one GPU; write ExactCount',
        ),
        (
            claim(exactly(adminAccess=True)),
            f'{FIELD}.adminAccess: "true": there is nothing to administer through a claim; remove it',
        ),
        (
            claim(exactly(tolerations=[{"operator": "Exists"}])),
            f'{FIELD}.tolerations[0]: "every key": a GPU with taint gpushare.dev/not-ready takes no clients; remove'
            " the toleration",
        ),
        (
            claim(exactly(tolerations=[{"key": "mine"}, {"key": "gpushare.dev/not-ready", "operator": "Exists"}])),
            f'{FIELD}.tolerations[1]: "gpushare.dev/not-ready": a GPU with taint gpushare.dev/not-ready takes no'
            " clients; remove the toleration",
        ),
        (
            claim(exactly(), config=[{"opaque": {"driver": "gpushare.dev", "parameters": {}}}]),
            'spec.devices.config[0].opaque.driver: "gpushare.dev" takes no configuration; write what the client needs'
            " as capacity.requests",
        ),
        (
            claim(exactly("inferense.gpushare.dev")),
            f'{FIELD}.deviceClassName: no GpuShare "inferense"; did you mean "inference"?',
        ),
        (
            claim(exactly("smal.inference.gpushare.dev")),
            f'{FIELD}.deviceClassName: GpuShare "inference" has no size "smal"; did you mean "small"?',
        ),
        (
            claim(exactly("huge.inference.gpushare.dev")),
            f'{FIELD}.deviceClassName: GpuShare "inference" has no size "huge"; it has "large", "small"',
        ),
        (
            claim(exactly(capacity={"threads": "50.5"})),
            f'{ASKED}[threads]: "50.5" is above the 50 percent that GpuShare "inference" allows'
            " (spec.clients.threads.max); write a whole number from 1 to 50",
        ),
        (
            claim(exactly(capacity={"threads": "0"})),
            f'{ASKED}[threads]: "0" is below 1 percent of the GPU\'s SMs; write a whole number from 1 to 50',
        ),
        (
            claim(exactly(capacity={"memory": "65Gi"})),
            f'{ASKED}[memory]: "65Gi" is above the 64Gi that GpuShare "inference" allows (spec.clients.memory.max);'
            " write at most 64Gi",
        ),
        (
            claim(exactly(capacity={"memory": "511Mi"})),
            f'{ASKED}[memory]: "511Mi" is below 512Mi, which the CUDA context alone needs; write more',
        ),
        (
            claim(exactly(capacity={"cores": "1"})),
            f"{ASKED}[cores]: no such capacity; a claim may name threads, memory and memoryBurst",
        ),
        (
            claim(exactly(capacity={"gpushare.dev/threads": "1"})),
            f'{ASKED}[gpushare.dev/threads]: write "threads", without the driver',
        ),
        (
            claim(exactly(capacity={"threads": "1e999999"})),
            f'{ASKED}[threads]: "1e999999" is no quantity that Kubernetes can hold; write it like 25 or 16Gi',
        ),
        (
            claim(exactly(SMALL, {"threads": "1e999999"})),
            f'{ASKED}[threads]: "1e999999" is no quantity that Kubernetes can hold; write it like 25 or 16Gi',
        ),
        (
            claim(exactly(capacity={"clients": "2"})),
            f'{ASKED}[clients]: "2": a claim is one client; write 1 or leave it out',
        ),
        (
            claim(exactly(SMALL, {"threads": "11", "memory": "8Gi"})),
            f'{ASKED}[threads]: "11": size "small" of GpuShare "inference" is 10; write that or leave it out, or claim'
            ' another amount by class "inference.gpushare.dev"',
        ),
        (
            claim(exactly(SMALL), annotations={ANNOTATION_SCHEDULERS_CLAIM: "true"}),
            f'{FIELD}.deviceClassName: "small.inference.gpushare.dev" cannot be asked for as an extended resource; use'
            ' the ResourceClaimTemplate "small.inference" in spec.resourceClaims',
        ),
    ],
)
def test_a_refusal_of_a_claim_names_field_value_and_bound(body: dict[str, Any], problem: str) -> None:
    assert refused(body) == [problem]
    if ANNOTATION_SCHEDULERS_CLAIM not in (body["metadata"]["annotations"] or {}):
        assert refused(template(body)) == [problem.replace("spec.", "spec.spec.", 1)]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (data(share(deleting=True)), "is being deleted and takes no new pods"),
        (data(share(delivery="DevicePlugin", sizes=[])), "ask for the resource gpushare.dev/inference in place of"),
        (
            data(share(allowedNamespaces={"matchLabels": {"team": "ml"}}), team="web"),
            'namespace "shop" may not use GpuShare "inference": its labels do not match team=ml',
        ),
    ],
)
def test_the_share_must_take_claims_of_the_namespace(state: AdmissionData, words: str) -> None:
    (problem,) = refused(claim(exactly()), state)
    assert problem.startswith(f"{FIELD}.deviceClassName: ")
    assert words in problem


def test_each_process_of_a_client_needs_room_for_its_context() -> None:
    four = share(clients={"processes": 4}, sizes=[])
    (problem,) = refused(claim(exactly(capacity={"threads": "50", "memory": "1Gi"})), data(four))
    assert "4 CUDA contexts take at 50 percent" in problem


def test_the_schedulers_own_claim_has_a_request_for_each_container() -> None:
    requests = [exactly(), exactly("gpu.example.com", count=4), exactly()]
    body = claim(*requests, annotations={ANNOTATION_SCHEDULERS_CLAIM: "true"})
    assert admitted(body) == body
    assert len(refused(claim(*requests))) == 1


def test_everything_that_is_wrong_is_reported_at_once() -> None:
    both = refused(claim(exactly(count=2, capacity={"threads": "60", "memory": "1Mi"}), exactly("x.gpushare.dev")))
    assert len(both) == 5


_THREADS = st.one_of(st.none(), st.integers(-3, 120).map(str), st.sampled_from(["49.2", "50001m", "1e1"]))
_MEMORY = st.one_of(st.none(), st.integers(0, 80 * 1024).map(lambda mib: f"{mib}Mi"), st.sampled_from(["8G", "64.1Gi"]))


@given(threads=_THREADS, memory=_MEMORY, name=st.sampled_from([OWN, SMALL]))
def test_what_is_admitted_is_within_the_share_and_a_size_is_exact(
    threads: str | None, memory: str | None, name: str
) -> None:
    asked = {key: value for key, value in (("threads", threads), ("memory", memory)) if value is not None}
    body = claim(exactly(name, asked))
    answer = admit_claim(body, data())
    if isinstance(answer, Denied):
        return
    patched = jsonpatch.apply_patch(copy.deepcopy(body), [change.operation() for change in answer.changes])
    requests = patched["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]
    if name == SMALL:
        assert (requests["threads"], parse_memory(requests["memory"])) in {("10", 8 * 2**30), ("1e1", 8 * 2**30)}
    else:
        assert requests == asked
        if memory is not None:
            assert 512 * MIB <= parse_memory(memory) <= 64 * 2**30
    assert admit_claim(patched, data()) == Admitted()


LIMITS = {"max": "96Gi", "overcommitPercent": 150}
LENDING = {"memory": {"default": "16Gi", "max": "64Gi", "limits": LIMITS}}
BORROWING_SIZE = {"name": "burst", "threads": 10, "memory": "8Gi", "memoryLimit": "24Gi"}
BURST = f"{ASKED}[memoryBurst]"


@pytest.mark.parametrize("capacity", [{"memoryBurst": "80Gi"}, {"memory": "64Gi", "memoryBurst": "32Gi"}])
def test_a_claim_may_borrow_up_to_the_shares_limit(capacity: dict[str, str]) -> None:
    body = claim(exactly(capacity=capacity))
    assert admitted(body, data(share(clients=LENDING))) == body


@pytest.mark.parametrize(
    ("clients", "capacity", "problem"),
    [
        (
            LENDING,
            {"memory": "64Gi", "memoryBurst": "33Gi"},
            f'{BURST}: "33Gi" above the 64Gi that are reserved is 97Gi; GpuShare "inference" allows 96Gi'
            " (spec.clients.memory.limits.max); write at most 32Gi",
        ),
        (
            LENDING,
            {"memoryBurst": "-1"},
            f'{BURST}: "-1" is below 0; write what the client may use above its memory, or leave it out',
        ),
        (
            {},
            {"memoryBurst": "1Gi"},
            f'{BURST}: "1Gi": GpuShare "inference" lets no claim borrow (spec.clients.memory.limits, and its'
            " overcommitPercent above 100); leave it out",
        ),
    ],
)
def test_a_claim_that_would_borrow_too_much_is_refused(
    clients: dict[str, Any], capacity: dict[str, str], problem: str
) -> None:
    assert refused(claim(exactly(capacity=capacity)), data(share(clients=clients))) == [problem]


def test_a_size_without_a_limit_lends_nothing() -> None:
    state = data(share(clients=LENDING, sizes=[*SIZES, BORROWING_SIZE]))
    patched = admitted(claim(exactly("burst.inference.gpushare.dev")), state)
    requests = patched["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"]
    assert requests == {"threads": "10", "memory": "8Gi", "memoryBurst": "16Gi"}
    (problem,) = refused(claim(exactly(SMALL, {"memoryBurst": "1Gi"})), state)
    assert problem.startswith(f'{BURST}: "1Gi": size "small" of GpuShare "inference" is 0; write that or leave it out')
