"""When a reading is made, and of which processes: NVML's views, /proc, and time."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.agent.gpus.view import GpuView
from gpushare.agent.observe.usage import Reading
from gpushare.agent.observe.usage_reader import TakenGpu, UsageReader, UsageSources
from gpushare.api.compute_mode import ComputeMode
from gpushare.nvml.types import GpuProcess, GpuProcesses
from tests.unit.agent.conftest import info
from tests.unit.agent.observed_pods import UUID, container_id, pod, share, uid

SERVER = 500
ROOT = "22 1 0:20 / / rw - overlay overlay rw\n23 22 0:21 / /proc rw - proc proc rw\n"


class Node:
    """One GPU of share a; processes have entries in a /proc of their own."""

    def __init__(self, proc: Path) -> None:
        self.now = 100.0
        self.proc = proc
        self.terminated: set[int] = set()
        self.depths: dict[int, int] = {}
        """Of processes in mount namespaces of their own."""
        self.places: dict[tuple[str, str, str], tuple[str, str]] = {}
        was_terminated = lambda _, process: process.pid in self.terminated  # noqa: E731 - one line of many
        depth = lambda pid, _: self.depths.get(pid, 0)  # noqa: E731
        self.reader = UsageReader(lambda: self.now, was_terminated, proc, proc_seconds=1.0, read_depth=depth)
        self.view = GpuView(info(), ComputeMode.EXCLUSIVE_PROCESS, GpuProcesses((), ()), self.now)

    def runs(self, pid: int, started: int = 100, number: int = 1) -> None:
        directory = self.proc / str(pid)
        directory.mkdir(exist_ok=True)
        (directory / "stat").write_text(f"{pid} (python) S " + " ".join(["0"] * 18 + [str(started), "0"]))
        (directory / "cgroup").write_text(f"0::/kubepods/pod{uid(number)}/{container_id(number * 10)}\n")

    def shows(self, *clients: int, compute: tuple[int, ...] = (SERVER,)) -> None:
        seen = GpuProcesses(*(tuple(GpuProcess(pid, 100) for pid in pids) for pids in (clients, compute)))
        self.view = replace(self.view, processes=seen, seen_at=self.now)

    async def read(self, taken: bool = True) -> list[Reading]:
        taken_gpus = {UUID: TakenGpu("a", SERVER)} if taken else {}
        pods = [pod(1), pod(2)]
        return await self.reader.read(
            UsageSources({UUID: self.view}, taken_gpus, pods, {"a": share()}, self.places, {})
        )

    def pids(self) -> list[int]:
        return [pid for usage in self.reader.readings[UUID].usages for pid in usage.pids]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_a_gpus_clients_are_read_and_its_own_server_is_left_out(node: Node) -> None:
    node.runs(11)
    node.runs(12)
    node.runs(SERVER)
    node.shows(11, compute=(12, SERVER))
    assert [item.uuid for item in await node.read()] == [UUID]
    assert node.pids() == [11, 12]


@pytest.mark.parametrize(("mounted", "unmounted"), [("/run/gpushare/mps", False), ("/run/gpushare/mps-of-mine", True)])
async def test_mounts_show_whether_a_process_past_mps_could_have_reached_mps(
    node: Node, mounted: str, unmounted: bool
) -> None:
    node.runs(12)
    (node.proc / "12/mountinfo").write_text(f"{ROOT}36 22 0:31 /client {mounted} ro,nosuid master:1 - tmpfs tmpfs rw\n")
    node.shows(compute=(12, SERVER))
    (reading,) = await node.read()
    assert [process.unmounted for usage in reading.usages for process in usage.processes] == [unmounted]


async def test_a_container_without_its_mounts_is_read_though_nvml_shows_none(
    node: Node,
) -> None:
    node.places = {("team", f"pod-{number}", "app"): ("a", UUID) for number in (1, 2)}
    for number in (1, 2):
        node.runs(number, number=number)
    (node.proc / "1/mountinfo").write_text("36 22 0:31 /client /run/gpushare/mps ro - tmpfs tmpfs rw\n")
    (node.proc / "2/mountinfo").write_text(ROOT)
    node.shows()
    (reading,) = await node.read()
    assert reading.usages == ()
    assert [(usage.pod, usage.container, usage.memory_mib, usage.slot) for usage in reading.without_mounts] == [
        ("pod-2", "app", 0, True)
    ]
    node.now += 2
    node.shows(compute=(2, SERVER))
    (reading,) = await node.read()
    assert [usage.pod for usage in reading.usages] == ["pod-2"]
    assert reading.without_mounts == (), "NVML lists it: it is reported once"


async def test_a_process_that_left_its_containers_root_could_have_reached_mps(node: Node) -> None:
    """chroot hides every mount from a process, which may then not pass for one whose runtime left them out."""
    node.places = {("team", "pod-1", "app"): ("a", UUID)}
    node.runs(1)
    (node.proc / "1/mountinfo").write_text("36 22 0:31 /client /run/gpushare/mps ro - tmpfs tmpfs rw\n")
    node.runs(12, started=200)
    (node.proc / "12/mountinfo").write_text("")
    node.shows(compute=(12, SERVER))
    (reading,) = await node.read()
    assert [process.unmounted for usage in reading.usages for process in usage.processes] == [False]


@pytest.mark.parametrize("mounts", ["", "1 2 0:5 / / rw - tmpfs tmpfs rw\n" * 65_536], ids=["a tmpfs", "and mounts"])
async def test_a_container_that_pivoted_is_past_mps_as_any_other(node: Node, mounts: str) -> None:
    node.places = {("team", "pod-1", "app"): ("a", UUID)}
    node.runs(12)
    node.depths[12] = 1
    (node.proc / "12/mountinfo").write_text(mounts)
    node.shows(compute=(12, SERVER))
    (reading,) = await node.read()
    (usage,) = reading.usages
    assert (usage.slot, usage.processes[0].unmounted, usage.unknown) == (True, False, "")
    assert reading.without_mounts == ()


async def test_a_container_whose_mounts_are_not_known_is_read_with_the_reason(node: Node) -> None:
    node.places = {("team", "pod-1", "app"): ("a", UUID)}
    node.runs(12)
    (node.proc / "12/mountinfo").write_text(ROOT + "24 22 0:5 / /m rw - tmpfs tmpfs rw\n" * 65_536)
    node.shows()
    (reading,) = await node.read()
    (usage,) = reading.without_mounts
    assert (usage.pod, usage.container, usage.processes[0].unmounted) == ("pod-1", "app", False)
    assert usage.unknown == f"{node.proc}/12/mountinfo: it has more than 1048576 bytes"


async def test_a_process_whose_cgroup_cannot_be_read_hides_nowhere(node: Node) -> None:
    node.runs(12)
    (node.proc / "12/cgroup").write_text("x" * 2_000_000)
    node.shows(12)
    (reading,) = await node.read()
    (usage,) = reading.usages
    assert (usage.pids, usage.pod_uid) == ((12,), "")
    assert usage.unknown == "/proc/12/cgroup: it has more than 1048576 bytes"


async def test_a_slow_search_of_proc_keeps_no_reading_from_being_made(node: Node) -> None:
    """A container may have as many processes as it likes, and start as often."""
    node.places = {("team", "pod-1", "app"): ("a", UUID)}
    node.runs(11)
    node.runs(12)
    (node.proc / "12/cgroup").unlink()
    os.mkfifo(node.proc / "12/cgroup")
    for _ in range(2):
        node.now += 2
        node.shows(11)
        await node.read()
        assert node.pids() == [11]
    (node.proc / "12/cgroup").write_text("")


async def test_one_view_of_nvml_is_one_reading(node: Node) -> None:
    node.runs(11)
    node.shows(11)
    await node.read()
    assert await node.read() == []
    assert node.pids() == [11]


async def test_a_process_that_has_ended_since_is_left_out(node: Node) -> None:
    node.shows(11)
    await node.read()
    assert node.pids() == []


async def test_a_pid_that_is_another_process_by_now_is_read_anew(node: Node) -> None:
    node.runs(11, started=100, number=1)
    node.shows(11)
    await node.read()
    node.now += 2
    node.runs(11, started=200, number=2)
    node.shows(11)
    (reading,) = await node.read()
    assert [(usage.pod, usage.processes[0].started) for usage in reading.usages] == [("pod-2", 200)]


async def test_the_owner_of_a_known_process_is_not_read_again(node: Node) -> None:
    node.runs(11)
    node.shows(11)
    await node.read()
    (node.proc / "11/cgroup").unlink()
    node.now += 2
    node.shows(11)
    await node.read()
    assert node.pids() == [11]


async def test_a_client_that_was_terminated_is_marked_while_it_is_listed(node: Node) -> None:
    node.runs(11)
    node.shows(11)
    node.terminated.add(11)
    (reading,) = await node.read()
    assert [process.terminated for usage in reading.usages for process in usage.processes] == [True]


async def test_an_nvml_that_hangs_leaves_no_reading_behind(node: Node) -> None:
    node.runs(11)
    node.shows(11)
    await node.read()
    node.now += 9
    await node.read()
    assert UUID in node.reader.readings
    node.now += 2
    assert await node.read() == []
    assert node.reader.readings == {}


async def test_a_lost_gpu_is_not_read(node: Node) -> None:
    node.runs(11)
    node.shows(11)
    await node.read()
    node.view = replace(node.view, lost=True)
    assert await node.read() == []
    assert node.reader.readings == {}


async def test_a_gpu_that_no_share_has_is_not_read(node: Node) -> None:
    node.runs(11)
    node.shows(11)
    assert await node.read(taken=False) == []
    assert node.reader.readings == {}
