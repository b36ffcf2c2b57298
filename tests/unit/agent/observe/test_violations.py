"""Granted against observed, case by case. The grant of these clients is 8192 MiB for two processes."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.agent.observe.usage import Reading, Usage
from gpushare.agent.observe.violations import Violation, message, violations
from gpushare.nvml.types import TOLERANCE_MIB
from tests.unit.agent.observed_pods import GRANT, UUID, process, usage

GPU_MIB = 143155
HOST: dict[str, Any] = {
    "pod_uid": "",
    "namespace": "",
    "pod": "",
    "container": "",
    "container_id": "",
    "slot": False,
    "grant": None,
}
NO_SLOT: dict[str, Any] = {"slot": False, "grant": None}


def judged(*usages: Usage) -> list[Violation]:
    return violations(Reading(UUID, "a", 100.0, GPU_MIB, usages))


def summary(*usages: Usage) -> list[tuple[str, int, int, list[int]]]:
    """(reason, granted, observed, PIDs to be ended)."""
    return [
        (str(violation.reason), violation.granted, violation.observed, [process.pid for process in violation.to_end])
        for violation in judged(*usages)
    ]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        pytest.param(usage(process(1, 8192)), [], id="exactly the grant"),
        pytest.param(usage(process(1, 8192 + TOLERANCE_MIB)), [], id="above by what NVML may show more"),
        pytest.param(
            usage(process(1, 8193 + TOLERANCE_MIB)),
            [("MemoryAboveGrant", 8192, 8193 + TOLERANCE_MIB, [1])],
            id="above by more than that",
        ),
        pytest.param(usage(process(1, 8000), process(2, 300)), [], id="the tolerance is of each process"),
        pytest.param(
            usage(process(1, 5000, started=1), process(2, 6000, started=2)),
            [("MemoryAboveGrant", 8192, 11000, [2, 1])],
            id="the grant is for the sum; all of the container are to be ended, the main process last",
        ),
        pytest.param(
            usage(process(1, 6000), process(2, 2000)), [], id="one process above its half, the sum within the grant"
        ),
        pytest.param(
            usage(process(1, 100, started=3), process(2, 100, started=1), process(3, 100, started=2)),
            [("TooManyProcesses", 2, 3, [1, 3, 2])],
            id="too many processes",
        ),
        pytest.param(
            usage(process(1, 9000, started=1), process(2, 100, started=2), process(3, 500, started=3)),
            [("TooManyProcesses", 2, 3, [3, 2, 1]), ("MemoryAboveGrant", 8192, 9600, [3, 2, 1])],
            id="too many with too much",
        ),
        pytest.param(
            usage(replace(process(1, 100), terminated=True), process(2, 100), process(3, 100)),
            [],
            id="one that was ended already computes no more, so it does not count",
        ),
        pytest.param(
            usage(replace(process(1, 9000), terminated=True), process(2, 100)),
            [("MemoryAboveGrant", 8192, 9100, [2])],
            id="one that was ended is not to be ended again",
        ),
        pytest.param(
            usage(process(1, 20000), by_default=True),
            [("MemoryAboveGrant", 8192, 20000, [])],
            id="a grant that is only assumed is no reason to end anybody",
        ),
        pytest.param(
            usage(process(1), process(2), process(3), by_default=True),
            [("TooManyProcesses", 2, 3, [])],
            id="nor are processes above an assumed grant",
        ),
        pytest.param(usage(process(1, 20000), grant=None), [], id="a slot of a share that is gone: nothing to compare"),
        pytest.param(usage(process(1, 500, mps=False)), [("NotAnMpsClient", 0, 500, [1])], id="past MPS, with a slot"),
        pytest.param(
            usage(process(1, 500, mps=False), **NO_SLOT),
            [("NotAnMpsClient", 0, 500, [])],
            id="past MPS, without a slot",
        ),
        pytest.param(
            usage(replace(process(1, 500, mps=False), unmounted=True)),
            [("CdiEditsMissing", 0, 500, [])],
            id="past MPS, with a slot, but started without the way to MPS: not the program's fault",
        ),
        pytest.param(
            usage(replace(process(1, 500, mps=False), unmounted=True), process(2, 500, mps=False, started=200)),
            [("NotAnMpsClient", 0, 1000, [2, 1])],
            id="past MPS by one that could have reached it",
        ),
        pytest.param(usage(process(1, 500, mps=False), **HOST), [("NotAnMpsClient", 0, 500, [])], id="past MPS, host"),
        pytest.param(usage(process(1, 500), **HOST), [("NoGrant", 0, 500, [])], id="a client of the host"),
        pytest.param(usage(process(1, 500), **NO_SLOT), [("NoGrant", 0, 500, [])], id="a client without a slot"),
        pytest.param(
            usage(process(1, 500), **(HOST | {"pod_uid": "u"})), [("NoGrant", 0, 500, [])], id="a pod that is gone"
        ),
        pytest.param(
            usage(process(1, 500), **(NO_SLOT | {"container": ""})),
            [("NoGrant", 0, 500, [])],
            id="a container that the status does not show",
        ),
    ],
)
def test_what_is_a_violation(case: Usage, expected: list[Any]) -> None:
    assert summary(case) == expected


def test_figures_that_cannot_be_true_together_are_no_reason_to_end_anybody() -> None:
    """Clients that together would use more than the whole GPU has: NVML is wrong about some of them."""
    clients = [usage(process(pid, 100_000), container=f"c{pid}") for pid in (1, 2)]
    assert summary(*clients) == []
    assert [reason for reason, *_ in summary(clients[0])] == ["MemoryAboveGrant"]


def test_a_process_past_mps_is_ended_after_its_containers_clients() -> None:
    """Its end may be the end of its container, and so of their kernels."""
    past_mps = usage(process(1, 500, mps=False))
    beside = usage(process(2, 500), replace(process(3, 500), terminated=True))
    elsewhere = usage(process(4, 500), pod_uid="other", pod="other")
    (violation,) = judged(past_mps, beside, elsewhere)
    assert [process.pid for process in violation.to_end] == [1]
    assert [process.pid for process in violation.clients_beside] == [2]


def test_a_container_without_its_mounts_violates_and_ends_no_process() -> None:
    stranded = usage(replace(process(7, 0, mps=False), unmounted=True))
    (violation,) = violations(Reading(UUID, "a", 100.0, GPU_MIB, (), (stranded,)))
    assert (str(violation.reason), violation.observed, violation.to_end) == ("CdiEditsMissing", 0, ())
    assert message(violation) == (
        "container app of pod team/pod-1 holds a slot of GPU GPU-0 of GpuShare a, but was started without the mounts "
        "that go with it, so it cannot reach MPS and uses 0 MiB past it: is CDI off in the node's container runtime?"
    )


def test_a_node_whose_other_containers_have_theirs_is_not_blamed() -> None:
    stranded = usage(replace(process(7, 0, mps=False), unmounted=True))
    (violation,) = violations(Reading(UUID, "a", 100.0, GPU_MIB, (), (stranded,), cdi_on=True))
    assert message(violation).endswith("uses 0 MiB past it: other containers of this node have theirs")


BOUND = "/proc/7/mountinfo: it has more than 1048576 bytes"


def test_mounts_that_are_not_known_are_told_with_file_and_bound() -> None:
    idle = usage(replace(process(7, 0, mps=False), unknown=BOUND))
    (violation,) = violations(Reading(UUID, "a", 100.0, GPU_MIB, (), (idle,)))
    assert (str(violation.reason), violation.observed, violation.to_end) == ("MountsUnknown", 0, ())
    assert message(violation) == (
        "container app of pod team/pod-1 holds a slot of GPU GPU-0 of GpuShare a and cannot reach MPS as far as can be "
        f"seen; whether its container was started with the mounts of its slot is not known: {BOUND}"
    )
    (past_mps,) = judged(usage(replace(process(7, 500, mps=False), unknown=BOUND)))
    assert (str(past_mps.reason), [item.pid for item in past_mps.to_end]) == ("NotAnMpsClient", [7])
    assert message(past_mps).endswith(BOUND)


@pytest.mark.parametrize(
    ("case", "text"),
    [
        (
            usage(replace(process(7, 500), unknown="/proc/7/cgroup: File name too long"), **HOST),
            "process 7, whose pod is not known (/proc/7/cgroup: File name too long), is an MPS client on GPU GPU-0 of "
            "GpuShare a with 500 MiB, its grant is 0 MiB: it holds no slot of it",
        ),
        (
            usage(process(1, 9000)),
            "container app of pod team/pod-1 uses 9000 MiB on GPU GPU-0 of GpuShare a (1 process), its grant is "
            "8192 MiB",
        ),
        (
            usage(process(1), process(2), process(3)),
            "container app of pod team/pod-1 has 3 CUDA processes on GPU GPU-0 of GpuShare a, its grant is 2",
        ),
        (
            usage(process(7, 500, mps=False), **HOST),
            "process 7 of the host uses 500 MiB on GPU GPU-0 of GpuShare a past MPS (PID 7), its grant is 0 MiB: no "
            "limit binds it, and while it runs an MPS server may fail to start",
        ),
        (
            usage(process(7, 500), **(HOST | {"pod_uid": "u"})),
            "process 7 of pod u, which the API does not know, is an MPS client on GPU GPU-0 of GpuShare a with "
            "500 MiB, its grant is 0 MiB: it holds no slot of it",
        ),
    ],
    ids=["no pod that is known", "memory", "processes", "past MPS", "no slot"],
)
def test_a_message_has_both_figures(case: Usage, text: str) -> None:
    assert [message(violation) for violation in judged(case)] == [text]


PROCESSES = st.lists(
    st.builds(
        lambda pid, mib, started, terminated: replace(process(pid, mib, started=started), terminated=terminated),
        st.integers(1, 10_000),
        st.integers(0, 12_000),
        st.integers(0, 50),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda listed: listed.pid,
)


@given(PROCESSES)
def test_a_container_is_ended_as_a_whole_or_not_at_all(listed: Any) -> None:
    """One of its processes ended alone could cut off the kernels of the others, and so hurt the neighbours."""
    living = {process for process in listed if not process.terminated}
    for violation in judged(usage(*listed)):
        assert set(violation.to_end) == living


@given(PROCESSES)
def test_a_container_within_its_grant_is_never_ended(listed: Any) -> None:
    within = [
        replace(process, memory_mib=process.memory_mib % (GRANT.process_memory_mib + 1)) for process in listed[:2]
    ]
    assert judged(usage(*within)) == []
