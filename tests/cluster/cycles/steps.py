"""Which step comes next: a seeded choice among those that make sense in the world as it is. Pure."""

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tests.cluster.cycles.world import MOST_CLIENTS, NAMES, STAYING, Kind, World

SETTLE_EVERY = 5
"""Steps between two looks at whether everything converges: in between, steps meet a system in motion."""
WEIGHTS = {
    "create": 4,
    "resize": 4,
    "delete": 1,
    "start": 10,
    "end": 6,
    "kill-agent": 1.5,
    "kill-operator": 0.5,  # its successor waits 30 s for the Lease
    "kill-daemon": 1,
    "kill-server": 1,
    "restart-kubelet": 1,
}
KINDS = {Kind.WORKER: 6, Kind.VICTIM: 4, Kind.HOG: 2, Kind.FAULTY: 1, Kind.CRASHING: 1}


@dataclass(frozen=True, slots=True)
class Step:
    verb: str
    share: str = ""
    per_gpu: int = 0
    threads: int = 0
    kind: Kind | None = None
    count: int = 0
    clients: tuple[str, ...] = ()
    size: str = ""
    """The name of the claim by which its clients get their part, of those in tests.cluster.claims; empty: they ask
    for slots."""
    pause: float = 0.0
    """Seconds after it."""

    def told(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value}


def choose(world: World, chance: random.Random, weights: Mapping[str, float] = WEIGHTS) -> Step:
    """The same world and the same state of `chance` give the same step."""
    possible = {verb: weight for verb, weight in weights.items() if _makes_sense(verb, world)}
    (verb,) = chance.choices(list(possible), list(possible.values()))
    pause = chance.choice((0.0, 0.0, 0.5, 2.0))
    usable = [share.name for share in world.usable()]
    match verb:
        case "create":
            name = chance.choice([name for name in NAMES if name not in world.shares])
            return Step(verb, name, per_gpu=chance.randint(1, 8), threads=chance.choice((10, 25, 50)), pause=pause)
        case "resize":
            name = chance.choice(usable)
            return Step(verb, name, per_gpu=chance.randint(1, 8), threads=chance.choice((10, 25, 50)), pause=pause)
        case "delete":
            return Step(
                verb, chance.choice([share.name for share in world.shares.values() if not share.deleting]), pause=pause
            )
        case "start":
            return _start(world, chance, pause)
        case "end":
            names = sorted(world.clients)
            return Step(verb, clients=tuple(chance.sample(names, chance.randint(1, min(3, len(names))))), pause=pause)
        case "kill-daemon" | "kill-server":
            return Step(verb, chance.choice(usable), pause=pause)
    return Step(verb, pause=pause)


def _start(world: World, chance: random.Random, pause: float) -> Step:
    share = chance.choice([usable for usable in world.usable() if world.free_slots(usable)])
    (kind,) = chance.choices(list(KINDS), list(KINDS.values()))
    most = min(3, world.free_slots(share), MOST_CLIENTS - len(world.clients)) if kind in STAYING else 1
    return Step("start", share.name, kind=kind, count=chance.randint(1, max(1, most)), pause=pause)


def _makes_sense(verb: str, world: World) -> bool:
    match verb:
        case "create":
            return len(world.shares) < len(NAMES)
        case "delete":
            return any(not share.deleting for share in world.shares.values())
        case "start":
            room = len(world.clients) < MOST_CLIENTS
            return room and any(world.free_slots(share) for share in world.usable())
        case "end":
            return bool(world.clients)
        case "kill-operator" | "kill-agent" | "restart-kubelet":
            return bool(world.shares)
        case _:
            return bool(world.usable())
