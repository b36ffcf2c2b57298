"""What a review may cost: little CPU time and a short answer, whatever a tenant writes.

CPU time is that of the thread, and the least of several rounds. Other work on the machine slows that, too: cores share
caches and units. So each round is compared with a fixed piece of work right beside it.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.webhook.bounds import (
    MOST_ALTERNATIVES,
    MOST_CLAIMS,
    MOST_CONTAINERS,
    MOST_REQUESTS,
    MOST_RESOURCES,
    MOST_SHARES,
)
from gpushare.webhook.review import Denied
from gpushare.webhook.serving.app import judged
from gpushare.webhook.serving.decisions import Reviews
from tests.unit.webhook.reviews import (
    CASES,
    CLASS,
    SLOT,
    MemorySources,
    answered,
    claim,
    container,
    pod,
    review,
    share,
)

SECONDS = 0.1
ANSWER_BYTES = 512 * 1024
QUIET_SECONDS = 0.0022
"""The time of `fixed_work` on an idle core of 2.4 GHz."""


def fixed_work() -> float:
    """Seconds that it takes now."""
    began = time.thread_time()
    sorted(str(number) for number in range(10_000))
    return time.thread_time() - began


def costs(endpoint: str, body: bytes, rounds: int = 3) -> float:
    """Seconds of an idle core."""
    spent = []
    for _ in range(rounds):
        before = fixed_work()
        began = time.thread_time()
        _, size = answered(endpoint, body)
        taken = time.thread_time() - began
        spent.append(taken / max(1.0, min(before, fixed_work()) / QUIET_SECONDS))
        assert size <= ANSWER_BYTES
    return min(spent)


@pytest.mark.parametrize("name", CASES)
def test_the_worst_that_was_thought_of_is_cheap(name: str) -> None:
    kind, make = CASES[name]
    body = review(make())
    assert costs(f"validate-{kind}", body) < SECONDS
    if kind != "gpushares":
        assert costs(f"mutate-{kind}", body) < SECONDS
    if kind == "pods":
        assert costs("validate-owners", review({"spec": {"template": make()}})) < SECONDS


ANY = st.sampled_from(["", "a", "1", "1e9", "GPUSHARE_A", SLOT, CLASS, "/run/gpushare/mps", "é", "\n"])
ENTRIES = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("name", "value", "mountPath", "devicePath", "key", "operator", "values"), ANY)
)
CONTAINERS = st.fixed_dictionaries(
    {"resources": st.dictionaries(st.sampled_from(["limits", "requests"]), st.dictionaries(ANY, ANY, max_size=3))},
    optional={name: st.lists(ENTRIES, max_size=2) for name in ("env", "volumeMounts", "volumeDevices", "ports")},
)
PODS = st.builds(
    lambda containers, claims, annotations: {
        "metadata": {"annotations": annotations},
        "spec": {"containers": containers, "resourceClaims": claims, "volumes": claims},
    },
    st.lists(CONTAINERS, min_size=1, max_size=3),
    st.lists(ENTRIES, max_size=2),
    st.dictionaries(st.sampled_from(["gpushare.dev/threads", "gpushare.dev/memory", "gpushare.dev/mem", "a"]), ANY),
)
CHOICES = st.fixed_dictionaries(
    {"deviceClassName": st.sampled_from([CLASS, f"a.{CLASS}", "other"])},
    optional={
        "capacity": st.fixed_dictionaries({"requests": st.dictionaries(ANY, ANY, max_size=3)}),
        "tolerations": st.lists(ENTRIES, max_size=2),
        "allocationMode": ANY,
    },
)
CLAIMS = st.builds(
    lambda requests, config: {"spec": {"devices": {"requests": requests, "config": config}}},
    st.lists(
        st.fixed_dictionaries({}, optional={"exactly": CHOICES, "firstAvailable": st.lists(CHOICES, max_size=2)}),
        min_size=1,
        max_size=2,
    ),
    st.lists(st.fixed_dictionaries({"opaque": st.just({"driver": "gpushare.dev"})}), max_size=2),
)
LABELS = st.fixed_dictionaries(
    {},
    optional={"matchLabels": st.dictionaries(ANY, ANY, max_size=2), "matchExpressions": st.lists(ENTRIES, max_size=2)},
)
SHARES = st.builds(
    lambda selector, products, sizes, memory: share(
        nodeSelector=selector,
        gpus={"products": products},
        sizes=sizes,
        clients={"perGpu": 1, "memory": {"default": memory}},
    ),
    LABELS,
    st.lists(ANY, max_size=2),
    st.lists(ENTRIES, max_size=2),
    ANY,
)
OBJECTS = st.one_of(
    st.tuples(st.just("pods"), PODS), st.tuples(st.just("claims"), CLAIMS), st.tuples(st.just("gpushares"), SHARES)
)


def swollen(value: Any, depth: int, times: int) -> Any:
    """`value` with what is at `depth` in it many times as large: lists, maps and text alike."""
    if depth > 0:
        if isinstance(value, dict):
            return {key: swollen(item, depth - 1, times) for key, item in value.items()}
        return [swollen(item, depth - 1, times) for item in value] if isinstance(value, list) else value
    if isinstance(value, dict):
        more = {f"{key}{number}": item for number in range(times) for key, item in value.items()}
        return value | more
    return value * times if isinstance(value, (list, str)) else value


@given(OBJECTS, st.integers(1, 7), st.sampled_from([5, 60, 300, 3000, 30_000]))
def test_whatever_grows_the_review_stays_cheap(case: tuple[str, Any], depth: int, times: int) -> None:
    endpoint, body = case
    larger = swollen(body, depth, times)
    assert costs(f"validate-{endpoint}", review(larger)) < SECONDS
    if endpoint == "pods":
        assert costs("validate-owners", review({"spec": {"template": larger}})) < SECONDS


def exactly(**fields: Any) -> dict[str, Any]:
    return {"exactly": {"deviceClassName": CLASS, **fields}}


@pytest.mark.parametrize(
    ("kind", "make", "most", "words"),
    [
        ("pods", lambda n: pod([container() for _ in range(n)]), MOST_CONTAINERS, "containers and init containers"),
        ("pods", lambda n: pod([container()], resourceClaims=[{"name": "a"}] * n), MOST_CLAIMS, "claims: at most"),
        (
            "pods",
            lambda n: pod([{"resources": {"limits": {f"example.com/{number}": "1" for number in range(n)}}}]),
            MOST_RESOURCES,
            "resources of a container",
        ),
        (
            "pods",
            lambda n: pod([container(f"gpushare.dev/s{number}") for number in range(n)]),
            MOST_SHARES,
            "GpuShares",
        ),
        ("claims", lambda n: claim(*[exactly()] * n), MOST_REQUESTS, "requests: at most"),
        (
            "claims",
            lambda n: claim({"firstAvailable": [{"deviceClassName": CLASS}] * n}),
            MOST_ALTERNATIVES,
            "alternatives: at most",
        ),
        (
            "claims",
            lambda n: claim(exactly(capacity={"requests": {f"c{number}": "1" for number in range(n)}})),
            MOST_RESOURCES,
            "capacities: at most",
        ),
    ],
)
def test_one_more_than_the_most_is_refused_by_its_field_and_number(
    kind: str, make: Callable[[int], Any], most: int, words: str
) -> None:
    decide = dict(Reviews(MemorySources(), "gpushare-system").all())[f"mutate-{kind}"]

    def told(number: int) -> str:
        _, answer = asyncio.run(judged(review(make(number)), decide))
        return answer.message() if isinstance(answer, Denied) else ""

    assert words not in told(most)
    assert told(most + 1).startswith("spec")
    assert f"{most + 1} {words}" in told(most + 1)
