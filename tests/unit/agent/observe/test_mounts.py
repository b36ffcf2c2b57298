"""Containers with a slot whose mounts the runtime left out, in a /proc of the test's own."""

from pathlib import Path

import pytest

from gpushare.agent.observe.mounts import RETRY_SECONDS, MountChecker, SlotContainer, running_containers
from tests.unit.agent.observed_pods import container, container_id, pod, uid

UUID = "GPU-0"
HERE = ("a", UUID)
OF_POD_1 = SlotContainer(UUID, container_id(10))
ROOT = "1043 995 0:203 / / ro,relatime - overlay overlay rw,lowerdir=/l:/m,upperdir=/u,workdir=/w\n"
MOUNT = "1101 1043 0:24 /gpushare/GPU-0/client /run/gpushare/mps ro,nosuid,nodev,relatime - tmpfs tmpfs rw,mode=755\n"


class Node:
    def __init__(self, proc: Path) -> None:
        self.now = 100.0
        self.proc = proc
        self.mounts = MountChecker(lambda: self.now, proc)
        (proc / "self").mkdir()
        self.runs(1, "0::/init.scope\n", ROOT)

    def runs(self, pid: int, cgroup: str, mountinfo: str | None, begun: int = 100) -> None:
        directory = self.proc / str(pid)
        directory.mkdir(exist_ok=True)
        (directory / "stat").write_text(f"{pid} (python) S " + " ".join(["0"] * 18 + [str(begun), "0"]))
        (directory / "cgroup").write_text(cgroup)
        if mountinfo is not None:
            (directory / "mountinfo").write_text(mountinfo)

    def in_container(self, pid: int, mountinfo: str | None, number: int = 1, begun: int = 100) -> None:
        cgroup = f"0::/kubepods/burstable/pod{uid(number)}/{container_id(number * 10)}\n"
        self.runs(pid, cgroup, mountinfo, begun)

    def ends(self, pid: int) -> None:
        for file in (self.proc / str(pid)).iterdir():
            file.unlink()

    def unmounted(self, *containers: SlotContainer) -> dict[str, list[int]]:
        found = self.mounts.unmounted(containers or (OF_POD_1,))
        return {uuid: [process.pid for process in listed] for uuid, listed in found.items()}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_container_with_the_mount_is_not_reported_nor_searched_again(node: Node) -> None:
    node.in_container(11, ROOT + MOUNT)
    assert node.unmounted() == {}
    node.in_container(11, ROOT)
    assert node.unmounted() == {}


def test_a_container_without_the_mount_is_reported_while_it_runs(node: Node) -> None:
    node.in_container(12, ROOT, begun=200)
    node.in_container(11, ROOT, begun=100)
    assert node.unmounted() == {UUID: [11]}
    assert node.unmounted() == {UUID: [11]}
    assert node.unmounted(SlotContainer(UUID, container_id(20))) == {}


def test_a_process_with_its_own_mounts_says_nothing_of_its_container(node: Node) -> None:
    node.in_container(11, ROOT + MOUNT)
    node.in_container(12, ROOT)
    assert node.unmounted() == {}


def test_a_process_that_was_read_while_an_exec_put_it_in_is_read_again(node: Node) -> None:
    node.in_container(12, ROOT)
    assert node.unmounted() == {UUID: [12]}
    node.in_container(11, ROOT + MOUNT)
    node.in_container(12, ROOT + MOUNT)
    assert node.unmounted() == {}


def test_a_later_process_of_the_same_pid_is_not_taken_for_it(node: Node) -> None:
    node.in_container(11, ROOT)
    assert node.unmounted() == {UUID: [11]}
    node.in_container(11, ROOT + MOUNT, number=2, begun=900)
    assert node.unmounted() == {}


def test_a_container_of_unseen_processes_is_searched_for_again_later(node: Node) -> None:
    assert node.unmounted() == {}
    node.in_container(11, ROOT)
    assert node.unmounted() == {}
    node.now += RETRY_SECONDS
    assert node.unmounted() == {UUID: [11]}


def test_a_process_that_ends_while_it_is_read_is_no_proof(node: Node) -> None:
    node.in_container(11, None)
    assert node.unmounted() == {}
    node.now += RETRY_SECONDS
    node.in_container(11, ROOT)
    assert node.unmounted() == {UUID: [11]}
    node.ends(11)
    assert node.unmounted() == {}


def test_only_running_containers_with_a_slot_are_checked() -> None:
    two = pod(1, container("app"), container("tool", share=None))
    waiting = pod(2)
    waiting["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "CreateContainerError"}}
    bound = pod(3, with_status=False)
    places = {("team", f"pod-{number}", "app"): HERE for number in (1, 2, 3)}
    assert list(running_containers([two, waiting, bound], places)) == [OF_POD_1]
    assert list(running_containers([two], {})) == []
