"""What happens to a cluster's GPUs, to our parts and to the shares, and which alerts it may raise."""

import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import SubprocessError
from typing import Any

from gpushare.nvml.types import NvmlError
from gpushare.simulation.nvml import DriverChannel
from localcluster.cluster import processes
from localcluster.kubectl import CommandError
from tests.cluster import node
from tests.cluster.clients import offender
from tests.cluster.harness import Harness, Share, Tenant, wait_until

ACCIDENTS: dict[str, frozenset[str]] = {
    "client faults": frozenset({"GpushareGpuFault"}),
    "client crashes in mid-kernel": frozenset({"GpushareGpuFault"}),
    "MPS server killed": frozenset({"GpushareGpuFault"}),
    "MPS daemon killed": frozenset({"GpushareDaemonRestarting"}),
    "agent killed": frozenset(),
    "operator killed": frozenset(),
    "webhook restarted": frozenset(),
    "kubelet restarted": frozenset(),
    "GPU lost": frozenset({"GpushareGpuLost", "GpushareGpuFault"}),
    "MPS server wedged": frozenset(),
    "process past MPS": frozenset({"GpushareMpsBypassed"}),
    "client above its grant": frozenset({"GpushareMemoryAboveGrant"}),
    "limits changed": frozenset(),
    "slots changed": frozenset(),
    "GPU drained": frozenset(),
    "third share without a GPU": frozenset(),
}
"""Each accident, with the alerts that are right to fire after it."""

MEMORY: dict[str, dict[str, Any]] = {
    "inference": {"default": "8Gi"},
    "training": {"default": "8Gi", "limits": {"max": "24Gi", "overcommitPercent": 110}},
}
"""`clients.memory` of each share; clients of the second one may borrow."""

FAILURES = (CommandError, AssertionError, StopIteration, OSError, ValueError, KeyError, SubprocessError, NvmlError)
"""What a cluster in motion may answer."""
ABOVE_MIB = 12_000
_PROLOGUE = """
import os, time
from gpushare.simulation.client import SimulatedContext
context = SimulatedContext.create()
"""
_FAULT = _PROLOGUE + 'context.fault("illegal_address")\ncontext.synchronize()\n'
_CRASH = _PROLOGUE + "context.launch(1000)\nos._exit(1)\n"


class AccidentError(Exception):
    """It could not be caused."""


class Accidents:
    """Causes them, and undoes what has to be undone after a while."""

    def __init__(
        self, harness: Harness, chance: random.Random, tenant: Tenant, shares: Sequence[str], per_gpu: int
    ) -> None:
        self._harness, self._chance, self._tenant = harness, chance, tenant
        self._shares, self._per_gpu = shares, per_gpu
        self._number = 0
        self._undo: list[tuple[float, Callable[[], object]]] = []
        self._how: dict[str, Callable[[Share], object]] = {
            "client faults": lambda share: self._run(share, _FAULT),
            "client crashes in mid-kernel": lambda share: self._run(share, _CRASH),
            "MPS server killed": lambda share: self._signal(share, "serverPid", "KILL"),
            "MPS daemon killed": lambda share: self._signal(share, "controlPid", "KILL"),
            "agent killed": lambda _: harness.restart_pods("agent", force=True),
            "operator killed": lambda _: harness.restart_pods("operator", force=True),
            "webhook restarted": lambda _: harness.system("rollout", "restart", "deployment", "gpushare-webhook"),
            "kubelet restarted": lambda _: processes.replace(harness.layout, "kubelet", signal.SIGTERM),
            "GPU lost": self._lose,
            "MPS server wedged": self._wedge,
            "process past MPS": self._bypass,
            "client above its grant": self._exceed,
            "limits changed": self._limits,
            "slots changed": self._slots,
            "GPU drained": self._drain,
            "third share without a GPU": self._third,
        }

    def cause(self, what: str) -> str:
        """Causes the accident on a share that can have it (a draining share may have no MPS daemon), and returns
        where."""
        problem = ""
        for name in self._chance.sample(self._shares, len(self._shares)):
            try:
                return str(self._how[what](Share(self._harness, name)) or "")
            except FAILURES as error:
                problem = f"{name}: {type(error).__name__}: {error}"[:300]
        raise AccidentError(problem)

    def undo_due(self) -> None:
        now = time.monotonic()
        for entry in [entry for entry in self._undo if now > entry[0]]:
            self._undo.remove(entry)
            self._attempt(entry[1])

    def undo_all(self) -> None:
        for _, undo in self._undo:
            self._attempt(undo)
        self._undo.clear()

    def _attempt(self, undo: Callable[[], object]) -> None:
        try:
            undo()
        except FAILURES as error:
            print(f"could not undo an accident: {error}", flush=True)

    def _later(self, seconds: float, undo: Callable[[], object]) -> None:
        self._undo.append((time.monotonic() + seconds, undo))

    # -- clients that harm

    def _name(self, kind: str) -> str:
        self._number += 1
        return f"{kind}-{self._number}"

    def _run(self, share: Share, program: str) -> str:
        name = self._name("harmful")
        self._tenant.start(self._tenant.pod(name, share.name, command=["python3", "-c", program], grace=1))
        self._later(60, lambda: self._tenant.kubectl.delete("pod", name, wait=False))
        return f"{name} on {share.name}"

    def _exceed(self, share: Share) -> str:
        """Its memory limit is lost by a variable that it garbles itself. 200 s are enough for the alert."""
        name, text = self._name("hog"), Path(offender.__file__).read_text()
        command = ["python3", "-c", text, str(ABOVE_MIB), "1", "exit"]
        self._tenant.start(
            self._tenant.pod(name, share.name, command=command, env=[{"name": "PROGRAM", "value": text}], grace=1)
        )
        self._later(200, lambda: self._tenant.kubectl.delete("pod", name, wait=False))
        return f"{name} on {share.name}"

    def _bypass(self, share: Share) -> str:
        """NVML lists a process of a pod on the GPU as one that is no MPS client."""
        name = self._name("stray")
        self._tenant.start(self._tenant.pod(name, share.name, command=["sleep", "3600"], grace=1))
        pids = wait_until(
            f"the process of {name}", lambda: self._sleeping(name), 20, lambda: self._tenant.explain(name)
        )
        uuid = node.daemon_of(self._harness, share)["uuid"]
        self._ask("add_process", uuid=uuid, pid=pids[0], memory_mib=700)

        def undo() -> None:
            self._ask("remove_process", uuid=uuid, pid=pids[0])
            self._tenant.kubectl.delete("pod", name, wait=False)

        self._later(200, undo)
        return f"{name} on {share.name}"

    def _sleeping(self, name: str) -> list[int]:
        uid = self._tenant.kubectl.get("pod", name)["metadata"]["uid"]
        return node.processes_of_pod(self._harness, uid, b"sleep")

    # -- GPUs and MPS

    def _ask(self, operation: str, **arguments: object) -> None:
        channel = DriverChannel(self._harness.in_node("/run/gpushare-simulation"))
        try:
            channel.ask(operation, **arguments)
        finally:
            channel.close()

    def _lose(self, share: Share) -> str:
        uuid = node.daemon_of(self._harness, share)["uuid"]
        self._ask("lose", uuid=uuid)
        self._later(120, lambda: self._ask("recover", uuid=uuid))
        return f"{uuid} of {share.name}"

    def _signal(self, share: Share, which: str, name: str) -> str:
        pid = node.daemon_of(self._harness, share)[which]
        node.signal_in_node(self._harness, pid, name)
        return share.name

    def _wedge(self, share: Share) -> str:
        pid = node.daemon_of(self._harness, share)["serverPid"]
        node.signal_in_node(self._harness, pid, "STOP")
        self._later(40, lambda: node.signal_in_node(self._harness, pid, "CONT"))
        return share.name

    # -- shares

    def _apply(self, share: Share, per_gpu: int | None = None, threads: dict[str, int] | None = None) -> None:
        share.apply(per_gpu or self._per_gpu, threads, MEMORY[share.name], per_node=1)

    def _limits(self, share: Share) -> str:
        threads = self._chance.choice((20, 30, 40))
        self._apply(share, threads={"default": threads, "max": 50})
        return f"{share.name}: {threads} %"

    def _slots(self, share: Share) -> str:
        self._apply(share, per_gpu=3)
        self._later(90, lambda: self._apply(share))
        return f"{share.name}: 3 for 90 s"

    def _drain(self, share: Share) -> str:
        """The share is deleted while clients run, and made again once they have gone."""
        share.delete(wait=False)
        self._later(150, lambda: self._again(share))
        return f"{share.name}, for 150 s"

    def _again(self, share: Share) -> None:
        live = self._harness.kubectl.find("gpushare", share.name)
        if live and "deletionTimestamp" in live["metadata"]:
            self._later(10, lambda: self._again(share))
        else:
            self._apply(share)

    def _third(self, _: Share) -> str:
        third = Share(self._harness, "spare")
        third.apply(2, per_node=1)
        self._later(120, lambda: third.delete(wait=False))
        return "spare, for 120 s"
