"""An hour in the life of a cluster: pods come and go, and now and then something happens to the GPUs or to our parts.

Everything random comes from one seed. What happened, and when, is recorded, so that an alert can be put beside it.
"""

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from localcluster.kubectl import CommandError, Object
from localcluster.stack import prepare_namespace
from measurements.dashboard.accidents import ACCIDENTS, MEMORY, AccidentError, Accidents
from tests.cluster.clients.test_borrowing import PROGRAM
from tests.cluster.harness import Harness, Share, Tenant

NAMESPACES = ("ml", "vision")
SHARES = tuple(MEMORY)
LENDS = "training"
BORROWED_MIB = "14000"
"""What a borrower takes, its context apart."""
PER_GPU = 6
MOST = 7
"""Clients at once: a machine of two cores has other work."""
ARRIVAL_SECONDS = 9.0
"""Mean time between two arrivals."""
MOST_BETWEEN = 200.0
"""Seconds between two accidents, at most."""
KINDS = {"worker": 6, "victim": 3, "batch": 3, "borrower": 2, "idle": 2, "refused": 2}


@dataclass(frozen=True)
class Happening:
    """`at`: Unix seconds."""

    at: float
    what: str
    detail: str


@dataclass
class Life:
    harness: Harness
    chance: random.Random
    happenings: list[Happening] = field(default_factory=list)
    ends: dict[tuple[str, str], float] = field(default_factory=dict)
    """The end of each pod, by (namespace, pod): the monotonic time at which it leaves."""
    numbered: int = 0
    load: float = 0.0
    """The machine's highest."""

    def live(self, minutes: float) -> None:
        """Blocks for that long. A request that the cluster refuses is recorded, and life goes on."""
        with self._shares(), self._accidents() as accidents:
            began = time.monotonic()
            due = schedule(minutes * 60, self.chance)
            next_arrival = began
            while (now := time.monotonic()) - began < minutes * 60:
                if due and now - began > due[0][0]:
                    self._befall(accidents, due.pop(0)[1])
                accidents.undo_due()
                if now > next_arrival:
                    next_arrival = now + self.chance.expovariate(1 / ARRIVAL_SECONDS)
                    self._arrive()
                self._leave(now)
                self.load = max(self.load, os.getloadavg()[0])
                time.sleep(0.5)

    def record(self, what: str, detail: str = "") -> None:
        self.happenings.append(Happening(round(time.time(), 1), what, detail))

    def told(self) -> list[dict[str, Any]]:
        return [asdict(happening) for happening in self.happenings]

    def _befall(self, accidents: Accidents, what: str) -> None:
        try:
            self.record(what, accidents.cause(what))
        except AccidentError as error:
            self.record(f"not caused: {what}", str(error))

    @contextmanager
    def _shares(self) -> Iterator[None]:
        for name in NAMESPACES:
            prepare_namespace(self.harness.kubectl, name, "restricted")
        for name in SHARES:
            Share(self.harness, name).apply(PER_GPU, per_node=1, memory=MEMORY[name])
        for name in SHARES:
            Share(self.harness, name).wait_ready()
        try:
            yield
        finally:
            for name in NAMESPACES:
                self.harness.kubectl.within(name).delete("pods", "--all", "--grace-period=1", wait=False)
            self.harness.kubectl.delete("gpushares", "--all", wait=False)

    @contextmanager
    def _accidents(self) -> Iterator[Accidents]:
        accidents = Accidents(self.harness, self.chance, self.tenant(NAMESPACES[0]), SHARES, PER_GPU)
        try:
            yield accidents
        finally:
            accidents.undo_all()

    def tenant(self, namespace: str) -> Tenant:
        return Tenant(self.harness, namespace)

    # -- clients

    def _arrive(self) -> None:
        if len(self.ends) >= MOST:
            return
        (kind,) = self.chance.choices(list(KINDS), list(KINDS.values()))
        namespace, share = self.chance.choice(NAMESPACES), self.chance.choice(SHARES)
        self.numbered += 1
        name = f"{kind}-{self.numbered}"
        pod = self._pod(namespace, name, kind, share)
        try:
            self.harness.kubectl.within(namespace).create(pod)
        except CommandError as error:
            if kind != "refused":
                self.record("pod refused", f"{name}: {error.text[:200]}")
            return
        longer = 150.0 if kind == "idle" else 30.0
        self.ends[namespace, name] = time.monotonic() + longer + self.chance.expovariate(1 / 90)

    def _pod(self, namespace: str, name: str, kind: str, share: str) -> Object:
        tenant = self.tenant(namespace)
        memory = {"gpushare.dev/memory": f"{self.chance.choice((2, 4, 8))}Gi"}
        match kind:
            case "worker":
                return tenant.pod(name, share, "depart", "--report-every", "5", annotations=memory)
            case "victim":
                return tenant.pod(name, share, "depart", "--role", "victim", "--kernel-ms", "200", annotations=memory)
            case "batch":
                return tenant.pod(name, share, "limits", annotations=memory)
            case "borrower":
                limit, command = {"gpushare.dev/memory-limit": "24Gi"}, ["python3", "-c", PROGRAM, BORROWED_MIB]
                return tenant.pod(name, LENDS, command=command, annotations=limit)
            case "idle":
                return tenant.pod(name, share, command=["sleep", "3600"], grace=1)
        wrong = self.chance.choice(({"gpushare.dev/threads": "90"}, {"gpushare.dev/memory": "900Gi"}, {}))
        return tenant.pod(name, share if wrong else "nowhere", "limits", annotations=wrong)

    def _leave(self, now: float) -> None:
        """Those whose time is over, one request for each namespace; nobody waits for their end."""
        due = [key for key, end in self.ends.items() if now > end]
        for namespace in {namespace for namespace, _ in due}:
            names = [name for of, name in due if of == namespace]
            self._delete(namespace, names)
        for key in due:
            del self.ends[key]

    def _delete(self, namespace: str, names: list[str]) -> None:
        try:
            self.harness.kubectl.within(namespace).delete("pods", *names, wait=False)
        except CommandError as error:
            self.record("pods not deleted", error.text[:200])


def schedule(seconds: float, chance: random.Random) -> list[tuple[float, str]]:
    """(seconds since the beginning, accident) in order: each accident at least once, none in the last tenth.

    Pure. In a long run all come again, in another order, about every `MOST_BETWEEN` seconds.
    """
    room = seconds * 0.9
    rounds = max(1, int(room / (MOST_BETWEEN * len(ACCIDENTS))))
    order = [name for _ in range(rounds) for name in chance.sample(sorted(ACCIDENTS), len(ACCIDENTS))]
    gap = room / (len(order) + 1)
    return [((number + 1) * gap, name) for number, name in enumerate(order)]
