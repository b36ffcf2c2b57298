"""What a supervisor or a broker reports is noticed between two ticks; that it lives on is no news."""

import time
from pathlib import Path

import pytest
from msgspec import structs

from gpushare.agent.reconcile.daemon_files import DaemonChanges
from gpushare.api.conditions import DaemonReason
from gpushare.mps.clock import boot_clock
from gpushare.mps.files import ModelFiles, write_model
from gpushare.mps.layout import GpuDir, gpu_dir
from gpushare.mps.wire import BrokerState, DaemonLimits, DaemonState
from tests.unit.agent.fake_node import FakeNode

READY = DaemonState(uuid="GPU-0", share="a", heartbeat=1.0, reason=DaemonReason.READY, server_pid=7)
LISTENS = BrokerState(uuid="GPU-0", heartbeat=1.0, listening=True)


@pytest.fixture
def gpu(tmp_path: Path) -> GpuDir:
    directory = gpu_dir(tmp_path, "GPU-0")
    directory.broker.mkdir(parents=True)
    write_model(directory.state, READY)
    write_model(directory.broker_state, LISTENS)
    return directory


@pytest.fixture
def known(gpu: GpuDir) -> DaemonChanges:
    changes = DaemonChanges(ModelFiles())
    assert changes.any([gpu]), "a GPU that was not there before"
    assert not changes.any([gpu])
    return changes


@pytest.mark.parametrize(
    "update",
    [
        {"reason": DaemonReason.FAULTED},
        {"stopped": True},
        {"server_pid": 8},
        {"in_force": DaemonLimits(threads=25, memory_mib=8192)},
    ],
)
def test_what_decides_about_clients_is_a_change_of_state_json(
    gpu: GpuDir, known: DaemonChanges, update: dict[str, object]
) -> None:
    write_model(gpu.state, structs.replace(READY, **update))
    assert known.any([gpu])
    assert not known.any([gpu])


def test_a_broker_that_stops_listening_is_a_change(gpu: GpuDir, known: DaemonChanges) -> None:
    write_model(gpu.broker_state, structs.replace(LISTENS, listening=False, problem="no MPS daemon"))
    assert known.any([gpu])


def test_heartbeats_contexts_and_arrivals_are_none(gpu: GpuDir, known: DaemonChanges) -> None:
    write_model(gpu.state, structs.replace(READY, heartbeat=3.0, contexts=4))
    write_model(gpu.broker_state, structs.replace(LISTENS, heartbeat=3.0, attached=9))
    assert not known.any([gpu])


def test_a_file_that_goes_or_cannot_be_read_is_a_change(gpu: GpuDir, known: DaemonChanges) -> None:
    gpu.state.unlink()
    assert known.any([gpu])
    gpu.broker_state.write_text("{")
    assert known.any([gpu])
    assert not known.any([gpu])


async def quiet(node: FakeNode) -> None:
    """Nothing else, such as a status that was just written, is about to start a tick."""
    await node.until(lambda: boot_clock() - node.running.tick.ended_at > 1.5)


async def test_a_gate_follows_the_supervisor_without_waiting_for_a_tick(node: FakeNode) -> None:
    """The agent's next tick, reading of NVML and of the kubelet are a minute away."""
    await node.stop()
    node.seldom, node.only_files, node.supervised = 60.0, True, False
    node.start()
    await node.until(lambda: node.status().get("gpus"))
    node.kube.assign({"uuid": "GPU-0", "share": "a"})
    directory = gpu_dir(node.root, "GPU-0")
    await node.until(lambda: directory.wanted.exists())
    await quiet(node)
    assert node.gates() == []
    node.supervised = True
    await node.until(lambda: node.gates() == ["gpushare.dev-gpu-GPU-0.json"])

    node.supervised = False
    await quiet(node)
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    fault = DaemonState(uuid="GPU-0", share="a", heartbeat=now, reason=DaemonReason.FAULTED, server_pid=1000)
    write_model(directory.state, fault)
    await node.until(lambda: node.gates() == [])
