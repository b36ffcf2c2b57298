"""The way from what agents serve, again and again, to the history of a share."""

from collections.abc import Sequence

from gpushare.agent.status.metrics import FAMILIES
from gpushare.kubectl.recommend.queries import KnownGpu
from gpushare.kubectl.recommend.watch import READ, ShareWatch, glance_of
from gpushare.kubectl.rules.recommend.history import HistorySource, Observed, ShareHistory
from tests.unit.kubectl.rules.recommend.made_up import share

GPUS = {"GPU-0": KnownGpu(81_559, 48, "team"), "GPU-1": KnownGpu(81_559, 48, "other")}
GIB = 1 << 30


def served(held: int, busy: float, *memory: int, slots: int = 4, of: str = "team") -> str:
    """What one agent serves; `memory`: of each container, in GiB."""
    where = f'share="{of}",uuid="GPU-0"'
    lines = [
        f"gpushare_slots{{{where}}} {slots}",
        f"gpushare_slots_held{{{where}}} {held}",
        f'gpushare_gpu_utilization_ratio{{uuid="GPU-0"}} {busy}',
    ]
    for at, gib in enumerate(memory):
        container = f'namespace="ml",pod="p{at}",container="main",{where}'
        lines += [
            f"gpushare_container_memory_used_bytes{{{container}}} {gib * GIB}",
            f"gpushare_container_memory_granted_bytes{{{container}}} {16 * GIB}",
        ]
    return "\n".join(lines) + "\n"


def watched(texts: Sequence[str]) -> ShareHistory:
    watch = ShareWatch(share())
    for at, text in enumerate(texts):
        watch.add(glance_of(100.0 + 5 * at, [text]))
    return watch.history(GPUS, 100.0, 100.0 + 5 * len(texts), 5.0)


def test_figures_are_the_most_of_all_glances() -> None:
    past = watched([served(2, 0.9, 1, 2), served(4, 0.3, 5, 2), served(4, 0.5, 3)])
    assert (past.source, past.begin, past.end, past.step) == (HistorySource.WATCH, 100.0, 115.0, 5.0)
    assert (past.clients, past.defaults) == (Observed(3, 100.0), Observed(3, 100.0))
    assert (past.full, past.held_together) == (2, 4)
    (gpu,) = past.gpus
    assert (gpu.uuid, gpu.samples, gpu.held_most, gpu.full, gpu.busy_when_full) == ("GPU-0", 3, 4, 2, 0.5)
    assert gpu.memory_most == 7 * 1024
    amounts = {
        container.pod: (container.samples, container.memory_most, container.granted) for container in past.containers
    }
    assert amounts == {"p0": (3, 5120, 16_384), "p1": (2, 2048, 16_384)}


def test_another_share_and_other_slots_are_no_evidence() -> None:
    past = watched([served(4, 0.5, 1, of="other"), served(8, 0.5, slots=8)])
    assert (past.clients, past.defaults, past.containers, past.full) == (None, None, [], 0)
    assert past.gpus[0].samples == 0


def test_nothing_served_is_a_history_without_samples() -> None:
    past = watched([])
    assert (past.clients, past.full, past.containers) == (None, 0, [])


def test_the_metrics_that_are_read_are_those_that_agents_serve() -> None:
    assert {family.name for family in FAMILIES} >= READ
