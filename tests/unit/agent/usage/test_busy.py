"""How busy containers say they are: what is counted, and what is not believed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.agent.status.metrics import BUSY, samples
from gpushare.agent.usage.busy import Busy, BusyTimes
from gpushare.agent.usage.usage import ListedProcess, Reading
from gpushare.kube.client import PODS
from tests.unit.agent.fake_node import FakeNode
from tests.unit.agent.observed_pods import UUID, pod, process, usage

WHERE = ("team", "pod-1", "app", "a", UUID)


def says(pid: int, seconds: float | None) -> ListedProcess:
    return replace(process(pid), busy_seconds=seconds)


def observed(times: BusyTimes, at: float, *processes: ListedProcess) -> Busy | None:
    """Of the only container, after a reading at that time."""
    usages = (usage(*processes),) if processes else ()
    times.update({UUID: Reading(UUID, "a", at, 143155, usages)})
    return times.found.get(WHERE)


def seconds(times: BusyTimes, at: float, *processes: ListedProcess) -> float | None:
    busy = observed(times, at, *processes)
    return None if busy is None else round(busy.seconds, 6)


def test_what_a_process_adds_is_counted_from_when_it_was_seen_first() -> None:
    times = BusyTimes()
    assert seconds(times, 100, says(1, 50.0)) == 0
    assert seconds(times, 102, says(1, 51.0)) == 1
    assert seconds(times, 104, says(1, 51.0)) == 1


def test_a_container_that_does_not_say_or_has_gone_has_no_figure() -> None:
    times = BusyTimes()
    assert observed(times, 100, says(1, None)) is None
    assert observed(times, 102, says(1, 1.0)) is not None
    assert observed(times, 104) is None


def test_a_kernel_of_ten_seconds_that_ends_now_is_believed_of_one_who_was_seen_so_long() -> None:
    times = BusyTimes()
    for at in (100, 102, 104, 106, 108):
        assert seconds(times, at, says(1, 0.0)) == 0
    assert seconds(times, 110, says(1, 10.0)) == 10


def test_a_process_is_never_busier_than_it_was_seen_and_never_goes_back() -> None:
    times = BusyTimes()
    observed(times, 100, says(1, 0.0))
    assert seconds(times, 102, says(1, 4000.0)) == 2
    assert seconds(times, 104, says(1, 0.0)) == 2


def test_processes_add_up_and_what_an_ended_one_has_done_stays() -> None:
    times = BusyTimes()
    observed(times, 100, says(1, 0.0), says(2, 0.0))
    busy = observed(times, 110, says(1, 8.0), says(2, 6.0))
    assert busy is not None
    assert busy.seconds == pytest.approx(14)
    assert busy.ratio == pytest.approx(1.4)
    assert seconds(times, 112, says(2, 7.0)) == 15


def test_the_ratio_is_of_the_last_minute() -> None:
    times = BusyTimes()
    observed(times, 0, says(1, 0.0))
    busy = observed(times, 100, says(1, 100.0))
    assert busy is not None
    assert busy.ratio is None, "the one before is older than a minute"
    for at in range(102, 200, 2):
        busy = observed(times, at, says(1, 100.0 + (at - 100) / 4))
    assert busy is not None
    assert busy.ratio == pytest.approx(0.25)
    assert len(busy.lately) <= 31


def test_an_old_reading_that_is_still_the_latest_changes_nothing() -> None:
    times = BusyTimes()
    observed(times, 100, says(1, 0.0))
    before = observed(times, 102, says(1, 1.0))
    assert observed(times, 102, says(1, 1.0)) == before


async def test_an_agent_exports_how_busy_a_client_says_it_is_until_it_has_ended(node: FakeNode) -> None:
    await node.serving()
    client = pod(1, name="pod", namespace="ns")
    node.kube.put(PODS, client)
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::1")}
    thread = node.proc / "4711" / "task" / "4712" / "comm"
    thread.parent.mkdir(parents=True)
    thread.write_text("gpubusy00000100\n")
    node.client(4711, 100, client)

    def exported() -> float | None:
        found = [it for it in samples(node.state.snapshot()) if it.family is BUSY]
        assert all(it.labels == ("ns", "pod", "app", "a", "GPU-0") for it in found)
        return found[0].value if found else None

    await node.until(lambda: exported() == 0)
    thread.write_text("gpubusy0000010a\n")
    await node.until(lambda: exported() == pytest.approx(0.1))
    node.nvml.clients["GPU-0"] = []
    await node.until(lambda: exported() is None)


@given(st.lists(st.tuples(st.floats(0.1, 5), st.floats(0, 1e6)), max_size=40))
def test_whatever_a_tenant_says_its_container_is_at_most_busy_all_the_time(told: list[tuple[float, float]]) -> None:
    times, at = BusyTimes(), 0.0
    observed(times, at, says(1, 0.0))
    last = 0.0
    for passed, word in told:
        at += passed
        busy = observed(times, at, says(1, word))
        assert busy is not None
        assert last <= busy.seconds <= at + 1e-6
        last = busy.seconds
