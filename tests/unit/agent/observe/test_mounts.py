"""Containers with a slot whose mounts the runtime left out, in a /proc of the test's own."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.agent.observe.mounts import (
    MAX_MOUNTINFO_BYTES,
    RETRY_SECONDS,
    ContainerProcess,
    MountChecker,
    SeenMounts,
    SlotContainer,
    Start,
    lacking_class_library,
    running_containers,
    scan,
    start_of,
)
from gpushare.process.bounded_read import reading_until
from tests.unit.agent.observed_pods import container, container_id, pod, uid

UUID = "GPU-0"
HERE = ("a", UUID)
OF_POD_1 = SlotContainer(UUID, container_id(10))
OVERLAY = "1043 995 0:203 / / ro,relatime - overlay overlay rw,lowerdir=/l:/m,upperdir=/u,workdir=/w\n"
PROCFS = "1044 1043 0:206 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw\n"
ROOT = OVERLAY + PROCFS
MOUNT = "1101 1043 0:24 /gpushare/GPU-0/client /run/gpushare/mps ro,nosuid,nodev,relatime - tmpfs tmpfs rw,mode=755\n"


class Node:
    def __init__(self, proc: Path) -> None:
        self.now = 100.0
        self.proc = proc
        self.depths: dict[int, int | None] = {}
        """Of processes in mount namespaces of their own. None: that may not be looked at."""
        self.mounts = MountChecker(lambda: self.now, proc, self.read_depth)
        (proc / "self").mkdir()
        self.runs(1, "0::/init.scope\n", ROOT)

    def read_depth(self, pid: int, proc: Path) -> int | None:
        depth = self.depths.get(pid, 0)
        if depth is None:
            raise PermissionError
        return depth

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
        """Without those of which it is not known."""
        by_gpu = self.mounts.unmounted(containers or (OF_POD_1,))
        known = {uuid: [item.lacking for item in some if not item.problem] for uuid, some in by_gpu.items()}
        return {uuid: [process.pid for process in some if process] for uuid, some in known.items() if some}

    def unknown(self, *containers: SlotContainer) -> list[str]:
        by_gpu = self.mounts.unmounted(containers or (OF_POD_1,))
        return [item.problem for some in by_gpu.values() for item in some if item.problem]


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


@pytest.mark.parametrize(
    ("depth", "mountinfo", "said"),
    [
        pytest.param(1, OVERLAY, "process 11 is in a mount namespace that the container's runtime did not", id="pivot"),
        pytest.param(0, OVERLAY, "process 11 has another root", id="chroot to a directory"),
        pytest.param(0, "1 2 0:5 / / rw - tmpfs tmpfs rw\n", "process 11 has another root", id="chroot to a volume"),
        pytest.param(0, PROCFS.replace(" - proc", " - tmpfs"), "has another root", id="chroot with a /proc of its own"),
    ],
)
def test_what_a_process_made_for_itself_proves_nothing(node: Node, depth: int, mountinfo: str, said: str) -> None:
    node.in_container(11, mountinfo)
    node.depths[11] = depth
    assert node.unmounted() == {}
    (problem,) = node.unknown()
    assert said in problem
    start = node.mounts.start_of(ContainerProcess(11, 100, ()))
    assert start.own_view, "it is past MPS as any other"


def test_a_pod_with_users_of_its_own_has_a_namespace_one_level_down(node: Node) -> None:
    node.in_container(11, ROOT)
    node.depths[11] = 1
    assert node.unmounted(SlotContainer(UUID, container_id(10), own_users=True)) == {UUID: [11]}
    node.in_container(21, ROOT, number=2)
    node.depths[21] = 2
    assert node.unmounted(SlotContainer(UUID, container_id(20), own_users=True)) == {}


def test_where_namespaces_are_not_shown_a_neighbour_with_the_mount_decides(node: Node) -> None:
    node.depths = {11: None, 21: None}
    node.in_container(11, ROOT)
    assert node.unmounted() == {UUID: [11]}, "CDI may be off"
    node.in_container(21, ROOT + MOUNT, number=2)
    both = (OF_POD_1, SlotContainer(UUID, container_id(20)))
    node.mounts.unmounted(both)
    node.mounts = MountChecker(lambda: node.now, node.proc, node.read_depth)
    node.mounts.unmounted(both[1:])
    assert node.unmounted(*both) == {}
    assert "may not be looked at" in node.unknown(*both)[0]


def test_more_mounts_than_the_bound_are_told_by_file_and_bound(node: Node) -> None:
    many = "".join(f"{number} 1043 0:9 / /tmp/m{number} rw - tmpfs none rw\n" for number in range(65_536))
    node.in_container(11, ROOT + many)
    began = time.monotonic()
    assert node.unmounted() == {}
    (problem,) = node.unknown()
    assert problem == f"{node.proc}/11/mountinfo: it has more than {MAX_MOUNTINFO_BYTES} bytes"
    node.in_container(11, ROOT + MOUNT + many)
    node.now += RETRY_SECONDS
    assert node.unknown() == [], "the line that decides is among the first"
    assert time.monotonic() - began < 5


def test_a_container_that_takes_all_time_keeps_no_other_from_being_known(node: Node) -> None:
    """What was found before the time was over stays, and the next search goes on from there."""
    node.in_container(11, ROOT + MOUNT)
    with reading_until(time.monotonic() - 1), pytest.raises(OSError, match=r"in time|not read"):
        node.unmounted()
    assert node.unmounted() == {}
    assert node.mounts.any_mounted


SEEN = st.builds(
    SeenMounts,
    process=st.builds(ContainerProcess, pid=st.integers(1, 9), started=st.integers(1, 9), owners=st.just(())),
    has_mount=st.booleans(),
    rooted=st.booleans(),
    depth=st.none() | st.integers(0, 3),
    problem=st.sampled_from(["", "/proc/1/mountinfo: it has more than 1 bytes"]),
)


PROGRAM = "1102 1043 8:1 /k/pre-stop /run/gpushare/pre-stop ro,nosuid,nodev,relatime - ext4 /dev/sda rw\n"
OF_POD_2 = SlotContainer(UUID, container_id(20))


def test_the_container_that_started_last_tells_of_the_pre_stop_program(node: Node) -> None:
    assert node.mounts.pre_stop_mounted() is None
    node.in_container(11, ROOT + MOUNT, begun=100)
    node.unmounted()
    assert node.mounts.pre_stop_mounted() is False
    node.in_container(21, ROOT + MOUNT + PROGRAM, number=2, begun=200)
    node.unmounted(OF_POD_1, OF_POD_2)
    assert node.mounts.pre_stop_mounted() is True


def test_a_runtime_that_mounts_nothing_any_more_mounts_no_program(node: Node) -> None:
    """CDI was switched off: a container that starts then has no way to MPS either."""
    node.in_container(11, ROOT + MOUNT + PROGRAM, begun=100)
    node.in_container(21, ROOT, number=2, begun=200)
    assert node.unmounted(OF_POD_1, OF_POD_2) == {UUID: [21]}
    assert node.mounts.pre_stop_mounted() is False


@pytest.mark.parametrize(
    ("depth", "mountinfo"),
    [
        pytest.param(1, ROOT + MOUNT, id="in a mount namespace of its own"),
        pytest.param(None, ROOT + MOUNT, id="in one that may not be looked at"),
        pytest.param(0, OVERLAY + MOUNT, id="in a root of its own, with a volume in the place of the pipe directory"),
        pytest.param(0, None, id="it ended"),
    ],
)
def test_who_hides_the_program_from_itself_hides_it_from_no_other_pod(
    node: Node, depth: int | None, mountinfo: str | None
) -> None:
    """Containers with a probe would get the sleep, of which the kubelet announces no end after the first six."""
    node.in_container(11, ROOT + MOUNT + PROGRAM, begun=100)
    node.in_container(21, mountinfo, number=2, begun=200)
    node.depths[21] = depth
    node.unmounted(OF_POD_1, OF_POD_2)
    assert node.mounts.pre_stop_mounted() is True


@given(st.lists(SEEN, max_size=5, unique_by=lambda item: item.process), st.booleans(), st.booleans())
def test_a_container_is_blamed_by_nothing_but_the_runtimes_own_view(
    seen: list[SeenMounts], own_users: bool, others: bool
) -> None:
    start = start_of(seen, own_users, others)
    if start.mounted or not seen:
        assert start == Start(mounted=bool(seen))
    elif not start.problem:
        (first, *_) = [item for item in seen if item.process == start.lacking and item.rooted and not item.problem]
        assert first.depth in (None, int(own_users))
    else:
        assert start.lacking is not None
        assert start.own_view or not any(
            item.rooted and not item.problem and item.depth == int(own_users) for item in seen
        )


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_no_line_of_mountinfo_is_an_error(text: list[bytes]) -> None:
    assert scan(text, "/run/gpushare/mps") == (False, False)
    assert scan([*text, MOUNT.encode()], "/run/gpushare/mps")[0]


FRONT = "1102 1043 0:24 /fronts/1/{} /usr/lib64/libcuda.so.1 ro - tmpfs tmpfs rw\n"
BEHIND = "1103 1043 8:1 /usr/lib64/libcuda.so.580.1 /usr/lib64/gpushare-libcuda.so.1 ro - ext4 /dev/sda rw\n"


@pytest.mark.parametrize(
    ("mountinfo", "sees"),
    [
        (ROOT + MOUNT, False),
        (ROOT + FRONT.format("libcuda-classes.so.1") + BEHIND, True),
        (ROOT + FRONT.format("libcuda-classes.so.1//deleted") + BEHIND, True),
        (ROOT + FRONT.format("libcuda.so.1") + BEHIND, False),
        (ROOT + FRONT.format("libcuda.so.1//deleted") + BEHIND, False),
        (ROOT + FRONT.format("not-libcuda-classes.so.1") + BEHIND, False),
        (ROOT + BEHIND.replace("gpushare-libcuda", "libcuda-classes"), False),
        ("torn", False),
        (None, False),
    ],
)
def test_a_container_with_the_library_of_classes_is_told_by_its_mounts(
    tmp_path: Path, mountinfo: str | None, sees: bool
) -> None:
    Node(tmp_path).in_container(7, mountinfo)
    assert lacking_class_library([(7, 1)], tmp_path) == (frozenset() if sees else {(7, 1)})


def test_many_mounts_cost_a_reading_the_time_of_one_container(node: Node, tmp_path: Path) -> None:
    """Whose are not read by then is taken for one of an older container, which nobody ends."""
    many = "".join(f"{number} 1043 8:1 /{number} /data/{'x' * 200} rw - ext4 /dev/sda rw\n" for number in range(4000))
    silent = [(pid, 1) for pid in range(11, 19)]
    for pid, _ in silent:
        node.in_container(pid, many + FRONT.format("libcuda-classes.so.1"))
    assert lacking_class_library(silent[:1], tmp_path) == frozenset()
    assert lacking_class_library(silent, tmp_path, seconds=0.0) == {*silent}
