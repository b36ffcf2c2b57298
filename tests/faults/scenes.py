"""The life of an installation, in scenes: lists of the random cycles' steps, which know who may be harmed."""

from tests.cluster.cycles.steps import Step
from tests.cluster.cycles.world import Kind


def _create(share: str = "red", per_gpu: int = 4, threads: int = 25) -> Step:
    return Step("create", share, per_gpu=per_gpu, threads=threads)


def _resize(share: str = "red", per_gpu: int = 4, threads: int = 25) -> Step:
    return Step("resize", share, per_gpu=per_gpu, threads=threads)


def _start(kind: Kind, share: str = "red", count: int = 1) -> Step:
    return Step("start", share, kind=kind, count=count)


SCENES: dict[str, tuple[Step, ...]] = {
    "a share with clients": (_create(), _start(Kind.WORKER, count=2)),
    "other limits under a client": (_create(), _start(Kind.WORKER), _resize(per_gpu=2, threads=50)),
    "a departure in mid-kernel": (
        _create(),
        _start(Kind.WORKER),
        _start(Kind.VICTIM),
        Step("end", clients=("victim-2",)),
    ),
    "a fault": (_create(), _start(Kind.WORKER), _start(Kind.FAULTY)),
    "a GPU handed on": (
        _create("red"),
        _create("green"),
        _start(Kind.WORKER, "green"),
        _create("blue"),
        Step("delete", "red"),
    ),
    "a share deleted under a client": (
        _create(),
        _start(Kind.WORKER),
        Step("delete", "red"),
        Step("end", clients=("worker-1",)),
    ),
}
"""Clients are numbered in the order of their start: `worker-1`, `victim-2`. After a scene everything is deleted, which
belongs to it."""
