"""A GPU as a tick has decided about it."""

from pathlib import Path

from gpushare.agent.reconcile.assignments import GpuPlan, GpuStage
from gpushare.agent.reconcile.daemon_files import DaemonFiles
from gpushare.agent.reconcile.decision import GpuDecision
from gpushare.agent.reconcile.offers import GpuOffer
from gpushare.agent.reconcile.readiness import Readiness
from gpushare.api.conditions import DaemonReason
from gpushare.api.gpushare import GpuShare
from gpushare.mps.layout import gpu_dir
from gpushare.mps.wire import DaemonLimits, DaemonState, DesiredDaemon

LIMITS = DaemonLimits(threads=50, memory_mib=16384)
READY = Readiness(DaemonReason.READY)


def decided(
    uuid: str = "GPU-0",
    *,
    share: GpuShare | None = None,
    readiness: Readiness = READY,
    stage: GpuStage = GpuStage.SERVE,
    state: DaemonState | None = None,
    per_gpu: int = 4,
) -> GpuDecision:
    """A GPU that share a has taken, of which no container holds a slot. `share`: None: it is not known here."""
    wanted = DesiredDaemon(uuid=uuid, share="a", limits=LIMITS)
    files = DaemonFiles(gpu_dir(Path("/run/gpushare"), uuid), wanted, state, broker=None, client_control=True)
    nothing_held = frozenset[int]()
    return GpuDecision(
        GpuPlan(uuid, "a", stage, LIMITS),
        readiness,
        nothing_held,
        drained=False,
        offer=GpuOffer(uuid, per_gpu, nothing_held, readiness.takes_clients),
        taken=files,
        share=share,
    )
