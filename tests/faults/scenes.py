"""The life of an installation, in scenes: steps of the random cycles, which know who may be harmed, and acts."""

from tests.cluster.cycles.steps import Step
from tests.cluster.cycles.world import Kind

CLAIMED = "parts"
"""Has a name of its own: for five minutes a kubelet takes the resource of this name for the slots of a share that is
gone, and starts no container that asks for it (docs/troubleshooting.md)."""


def _as(verb: str, share: str = "red") -> Step:
    """A share of another kind: claimed | audited | strict."""
    return Step(f"create-{verb}", share, per_gpu=4, threads=20)


def _create(share: str = "red", per_gpu: int = 4, threads: int = 25) -> Step:
    return Step("create", share, per_gpu=per_gpu, threads=threads)


def _resize(share: str = "red", per_gpu: int = 4, threads: int = 25) -> Step:
    return Step("resize", share, per_gpu=per_gpu, threads=threads)


def _start(kind: Kind, share: str = "red", count: int = 1, size: str = "") -> Step:
    return Step("start", share, kind=kind, count=count, size=size)


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
    "claims of different sizes": (
        _as("claimed", CLAIMED),
        _start(Kind.WORKER, CLAIMED, size="small"),
        _start(Kind.VICTIM, CLAIMED, size="large"),
        _start(Kind.WORKER, CLAIMED, size="own"),
        Step("end", clients=("victim-2",)),
    ),
    "a client above its grant, audited": (
        _as("audited"),
        _start(Kind.WORKER),
        Step("exceed", "red", clients=("hog",)),
        _start(Kind.WORKER),
    ),
    "a client above its grant, ended": (
        _as("strict"),
        _start(Kind.WORKER),
        Step("exceed", "red", clients=("hog",)),
        _start(Kind.WORKER),
        Step("dismiss", clients=("hog",)),
    ),
    "a roll-out": (
        _create(),
        _start(Kind.WORKER),
        Step("change-template", "red"),
        Step("end", clients=("worker-1",)),
        Step("rolled", "red"),
    ),
    "a drained node": (
        _create(),
        _start(Kind.WORKER),
        _start(Kind.VICTIM),
        _start(Kind.WORKER),
        Step("drain", clients=("victim-2", "worker-3")),
        Step("uncordon"),
    ),
    "an uninstallation": (
        Step("choose-deletion"),
        _create(),
        _start(Kind.WORKER),
        Step("uninstall", "red", clients=("worker-1",)),
        Step("install"),
    ),
}
"""Clients are numbered in the order of their start: `worker-1`, `victim-2`. After a scene everything is deleted, which
belongs to it."""
