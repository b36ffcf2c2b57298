"""grants.json of each GPU: written when it changes, and never emptied by an agent that knows nothing yet."""

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from gpushare.agent.attach.files import GrantFiles
from gpushare.agent.attach.grants import PartHolders, closed
from gpushare.agent.reconcile.daemon_files import DaemonFiles
from gpushare.agent.reconcile.readiness import Readiness
from gpushare.api.conditions import DaemonReason
from gpushare.kube.client import PODS
from gpushare.kube.pods import pods_by_cgroup_uid
from gpushare.mps.files import read_model
from gpushare.mps.layout import GpuDir, gpu_dir
from gpushare.mps.wire import DaemonLimits, DesiredDaemon, GpuGrants
from tests.unit.agent.attach.test_grants import HERE
from tests.unit.agent.fake_node import FakeNode
from tests.unit.agent.observed_pods import UUID, pod, share

READY = {UUID: ""}
LOST = {UUID: closed(Readiness(DaemonReason.GPU_LOST, "gone"))}
HOLDERS = PartHolders(pods_by_cgroup_uid([pod()]), {("team", "pod-1", "app"): HERE}, {}, {"a": share()})
NOBODY = PartHolders({}, {}, {}, {})


@pytest.fixture
def directory(tmp_path: Path) -> GpuDir:
    (tmp_path / UUID).mkdir()
    return gpu_dir(tmp_path, UUID)


def taken(directory: GpuDir, share_name: str = "a", *, stop: bool = False) -> dict[str, DaemonFiles]:
    wanted = DesiredDaemon(uuid=UUID, share=share_name, limits=DaemonLimits(threads=50, memory_mib=1024), stop=stop)
    return {UUID: DaemonFiles(directory, wanted, None, None, True)}


def written(directory: GpuDir) -> GpuGrants:
    grants = read_model(directory.grants, GpuGrants).value
    assert grants is not None
    return grants


def version(directory: GpuDir) -> int:
    """Another one after each writing: the file is replaced."""
    return directory.grants.stat().st_ino


def test_the_broker_can_read_it(directory: GpuDir) -> None:
    GrantFiles().update(taken(directory), READY, HOLDERS)
    assert directory.grants.stat().st_mode & 0o777 == 0o644
    assert [(pod.name, pod.containers[0].name) for pod in written(directory).pods] == [("pod-1", "app")]


def test_what_stays_as_it_was_is_not_written_again_and_what_changes_is(directory: GpuDir) -> None:
    files = GrantFiles()
    files.update(taken(directory), READY, HOLDERS)
    first = version(directory)
    files.update(taken(directory), READY, HOLDERS)
    assert version(directory) == first
    files.update(taken(directory), LOST, HOLDERS)
    assert written(directory).closed == "GpuLost: gone"
    files.update(taken(directory), READY, NOBODY)
    assert (written(directory).closed, written(directory).pods) == ("", [])


def test_an_agent_without_readings_keeps_pods_and_closes_the_file(
    directory: GpuDir,
) -> None:
    GrantFiles().update(taken(directory), READY, HOLDERS)
    before = written(directory)
    restarted = GrantFiles()
    restarted.update(taken(directory), LOST, None)
    assert written(directory) == structs.replace(before, closed="GpuLost: gone")


def test_the_broker_is_told_the_places_and_how_long_a_process_waits(directory: GpuDir) -> None:
    queued = share(clients=share().clients.wire() | {"queue": {"slots": 32, "maxWait": "30m"}})
    files = GrantFiles()
    for holders, told in (
        (HOLDERS, (0, 0)),
        (replace(HOLDERS, shares={"a": queued}), (8, 1800)),
        (None, (8, 1800)),
        (replace(HOLDERS, shares={}), (8, 1800)),
        (HOLDERS, (0, 0)),
    ):
        files.update(taken(directory), READY, holders)
        assert (written(directory).places, written(directory).max_wait) == told


def test_nothing_is_written_before_anybody_is_known(directory: GpuDir) -> None:
    GrantFiles().update(taken(directory), READY, None)
    assert not directory.grants.exists()


def test_the_grants_of_another_share_are_not_kept(directory: GpuDir) -> None:
    files = GrantFiles()
    files.update(taken(directory), READY, HOLDERS)
    for still_unknown in (files, GrantFiles()):
        still_unknown.update(taken(directory, "b"), READY, None)
        assert written(directory).share == "a", "another share's grants were made this one's"
    files.update(taken(directory, "b"), READY, NOBODY)
    assert (written(directory).share, written(directory).pods) == ("b", [])


def test_a_vanished_file_is_written_again_while_the_gpu_is_kept(directory: GpuDir) -> None:
    files = GrantFiles()
    files.update(taken(directory), READY, HOLDERS)
    directory.grants.unlink()
    files.update(taken(directory, stop=True), READY, HOLDERS)
    assert not directory.grants.exists()
    files.update(taken(directory), READY, HOLDERS)
    assert written(directory).pods


def test_a_gpu_whose_directory_cannot_be_written_holds_up_no_other(
    directory: GpuDir, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files, missing = GrantFiles(), gpu_dir(tmp_path, "GPU-gone")
    wanted = DesiredDaemon(uuid="GPU-gone", share="a", limits=DaemonLimits(threads=50, memory_mib=1024))
    both = {"GPU-gone": DaemonFiles(missing, wanted, None, None, True), **taken(directory)}
    for _ in range(2):
        files.update(both, {**READY, "GPU-gone": READY[UUID]}, HOLDERS)
    assert written(directory).pods
    assert [record.getMessage()[:12] for record in caplog.records] == ["GPU GPU-gone"]


async def test_the_agent_grants_a_slot_while_the_kubelet_lists_it(node: FakeNode) -> None:
    await node.serving()
    directory = gpu_dir(node.root, "GPU-0")
    await node.until(directory.grants.exists)
    assert written(directory).pods == []
    node.kube.put(PODS, pod(1, with_status=False, name="pod", namespace="ns"))
    await node.ticks(2)
    assert written(directory).pods == []
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::1")}
    await node.until(lambda: [pod.name for pod in written(directory).pods] == ["pod"])
    node.kubelet.holders = set()
    await node.until(lambda: written(directory).pods == [])


async def test_a_restarted_agent_keeps_grants_while_the_kubelet_is_down(node: FakeNode) -> None:
    await node.serving()
    directory = gpu_dir(node.root, "GPU-0")
    node.kube.put(PODS, pod(1, with_status=False, name="pod", namespace="ns"))
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::1")}
    await node.until(lambda: directory.grants.exists() and written(directory).pods)
    await node.stop()
    node.kubelet.down = True
    node.start()
    await node.until(lambda: node.latest.decisions is not None and node.readings.cache.pods.synced.is_set())
    await node.ticks(3)
    assert [pod.name for pod in written(directory).pods] == ["pod"]


async def test_a_gpu_is_closed_after_maxwait_and_not_while_draining(
    node: FakeNode,
) -> None:
    await node.serving()
    directory = gpu_dir(node.root, "GPU-0")
    node.kubelet.holders = {("gpushare.dev/a", "GPU-0::0")}
    await node.read()
    node.kube.assign({"uuid": "GPU-0", "share": "a", "draining": True})
    await node.until(lambda: node.kubelet.ids() == ["GPU-0::0"])
    await node.ticks(2)
    assert written(directory).closed == ""
    since = "2026-01-01T00:00:00Z"
    node.kube.assign({"uuid": "GPU-0", "share": "a", "paused": True, "terminateClients": True, "waitingSince": since})
    await node.until(lambda: written(directory).closed.startswith("Stopping: maxWait of GpuShare a is over"))


async def test_the_file_goes_with_the_gpu(node: FakeNode) -> None:
    await node.serving()
    directory = gpu_dir(node.root, "GPU-0")
    await node.until(directory.grants.exists)
    node.kube.assign()
    await node.until(lambda: not directory.path.exists())
