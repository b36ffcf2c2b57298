"""Readiness of a GPU's daemon to serve clients: each sentence is one case."""

from dataclasses import replace

import pytest
from msgspec import structs

from gpushare.agent.gpus.view import GpuView
from gpushare.agent.reconcile.readiness import ReadinessInput, readiness_of, with_room
from gpushare.api.compute_mode import ComputeMode, ComputeModePolicy
from gpushare.api.conditions import DaemonReason
from gpushare.mps.wire import BrokerState, DaemonLimits, DaemonState, DesiredDaemon
from gpushare.nvml.types import GpuInfo, GpuProcess, GpuProcesses

LIMITS = DaemonLimits(threads=50, memory_mib=16384)
INFO = GpuInfo("GPU-1", 0, 0, "NVIDIA H200", 143155, 132, "9.0", None, False)
VIEW = GpuView(INFO, ComputeMode.EXCLUSIVE_PROCESS, GpuProcesses((), (GpuProcess(77, 66),)), seen_at=99.0)
STATE = DaemonState(uuid="GPU-1", share="a", heartbeat=99.0, reason=DaemonReason.READY, server_pid=77, in_force=LIMITS)
GOOD = ReadinessInput(
    wanted=DesiredDaemon(uuid="GPU-1", share="a", limits=LIMITS),
    state=STATE,
    broker=BrokerState(uuid="GPU-1", heartbeat=99.0, listening=True),
    view=VIEW,
    client_control=True,
    server_since=90.0,
    now=100.0,
)


def state(**changes: object) -> ReadinessInput:
    return replace(GOOD, state=structs.replace(STATE, **changes))


def broker(**changes: object) -> ReadinessInput:
    assert GOOD.broker is not None
    return replace(GOOD, broker=structs.replace(GOOD.broker, **changes))


def view(**changes: object) -> ReadinessInput:
    return replace(GOOD, view=replace(VIEW, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sentence", "evidence", "reason"),
    [
        ("everything verified is ready", GOOD, DaemonReason.READY),
        ("a GPU that shall stop is stopping, whatever its daemon says",
         replace(GOOD, wanted=structs.replace(GOOD.wanted, stop=True)), DaemonReason.STOPPING),
        ("a GPU that NVML never showed has failed", replace(GOOD, view=None), DaemonReason.DAEMON_FAILED),
        ("a lost GPU is lost", view(lost=True), DaemonReason.GPU_LOST),
        ("without state.json no MPS pod has taken the GPU", replace(GOOD, state=None), DaemonReason.PENDING),
        ("the state of another share's daemon proves nothing", state(share="b"), DaemonReason.PENDING),
        ("the state of another GPU's daemon proves nothing", state(uuid="GPU-2"), DaemonReason.PENDING),
        ("a heartbeat of 10 s is fresh", state(heartbeat=90.0), DaemonReason.READY),
        ("an older heartbeat is silence, even though the state says Ready",
         state(heartbeat=89.9), DaemonReason.SUPERVISOR_SILENT),
        ("a heartbeat from the future is of another boot", state(heartbeat=150.0), DaemonReason.SUPERVISOR_SILENT),
        ("a daemon that was ended serves nobody", state(stopped=True), DaemonReason.PENDING),
        ("the supervisor's own reason is passed on",
         state(reason=DaemonReason.NOFILE_TOO_LOW), DaemonReason.NOFILE_TOO_LOW),
        ("outside EXCLUSIVE_PROCESS a stray process could take the GPU",
         view(mode=ComputeMode.DEFAULT), DaemonReason.STARTING),
        ("where compute modes are left alone that is the administrator's concern",
         replace(view(mode=ComputeMode.DEFAULT), modes=ComputeModePolicy.LEAVE), DaemonReason.READY),
        ("other limits in force than wanted are not enforced",
         state(in_force=DaemonLimits(threads=100, memory_mib=16384)), DaemonReason.LIMITS_NOT_IN_FORCE),
        ("limits not read back are not enforced", state(in_force=None), DaemonReason.LIMITS_NOT_IN_FORCE),
        ("an ACTIVE server without a context in NVML let the GPU go",
         view(processes=GpuProcesses((), ())), DaemonReason.SERVER_CONTEXT_LOST),
        ("a server that became known after the last look is waited for",
         replace(view(processes=GpuProcesses((), ())), server_since=99.5), DaemonReason.STARTING),
        ("a look of long ago proves nothing", view(seen_at=80.0), DaemonReason.SERVER_NOT_ACTIVE),
        ("without client/control no client could connect",
         replace(GOOD, client_control=False), DaemonReason.STARTING),
        ("a broker that never wrote its state is starting", replace(GOOD, broker=None), DaemonReason.STARTING),
        ("a broker without news for more than 10 s is not ready",
         broker(heartbeat=89.9), DaemonReason.BROKER_NOT_READY),
        ("a broker whose news are from the future is not ready",
         broker(heartbeat=101.1), DaemonReason.BROKER_NOT_READY),
        ("a broker that writes of another GPU is not ready",
         broker(uuid="GPU-2"), DaemonReason.BROKER_NOT_READY),
        ("a broker that reaches no daemon is not ready",
         broker(listening=False, problem="gone"), DaemonReason.BROKER_NOT_READY),
        ("a broker whose attaches fail is not ready",
         broker(problem="attaches fail"), DaemonReason.BROKER_NOT_READY),
    ],
)  # fmt: skip
def test_readiness(sentence: str, evidence: ReadinessInput, reason: DaemonReason) -> None:
    readiness = readiness_of(evidence)
    assert readiness.reason is reason, sentence
    assert readiness.ready == (reason is DaemonReason.READY)
    assert readiness.ready or readiness.message or evidence.state is not None


FULL = "48 of 48 client contexts are taken and a client may need 1"


@pytest.mark.parametrize(
    ("sentence", "contexts", "processes", "free_slots", "takes"),
    [
        ("there is room for one more", 47, 1, True, True),
        ("there is none", 48, 1, True, False),
        ("a client of two processes needs room for both", 47, 2, True, False),
        ("where every slot is taken a full table is as it should be", 48, 1, False, True),
    ],
)
def test_no_slot_is_offered_that_could_not_be_used(
    sentence: str, contexts: int, processes: int, free_slots: bool, takes: bool
) -> None:
    readiness = with_room(readiness_of(GOOD), contexts, 48, processes, free_slots)
    assert readiness.takes_clients is takes, sentence
    assert readiness.ready, "running clients are served either way"
    assert takes or readiness.reason is DaemonReason.CLIENT_TABLE_FULL


def test_a_daemon_that_is_not_ready_comes_before_its_full_table() -> None:
    assert with_room(readiness_of(view(lost=True)), 48, 48, 1, True).reason is DaemonReason.GPU_LOST


def test_a_full_table_is_shown_with_its_figures() -> None:
    assert with_room(readiness_of(GOOD), 48, 48, 1, True).message.startswith(FULL)


def test_limits_not_in_force_name_both_values() -> None:
    message = readiness_of(state(in_force=DaemonLimits(threads=100, memory_mib=1))).message
    assert "50 %" in message
    assert "16384 MiB" in message
    assert "100 %, 1 MiB" in message


@pytest.mark.parametrize(
    ("evidence", "writer"),
    [(state(heartbeat=89.0), "the MPS pod of GpuShare a"), (broker(heartbeat=89.0), "the attach broker")],
)
def test_an_old_heartbeat_on_a_full_disk_has_that_as_its_cause(evidence: ReadinessInput, writer: str) -> None:
    assert readiness_of(evidence).message == f"{writer} writes no state any more"
    cause = "since nothing can be written below /run/gpushare: it is full, read-only or fails"
    expected = f"{writer} writes no state any more, {cause}"
    assert readiness_of(replace(evidence, full="/run/gpushare")).message == expected
    assert readiness_of(replace(GOOD, full="/run/gpushare")).ready, "it serves as long as its parts are heard of"
