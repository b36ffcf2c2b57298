"""Does a step on the cluster, and tells the world what it did."""

import signal
import time
from collections.abc import Callable

from localcluster.cluster import processes
from localcluster.kubectl import Object
from tests.cluster import node
from tests.cluster.cycles.steps import Step
from tests.cluster.cycles.world import HARMFUL, STAYING, Client, Kind, World
from tests.cluster.harness import Harness, Share, Tenant, wait_until

START_SECONDS = 45
WITHDRAWN = "UnexpectedAdmissionError"
"""Slots were withdrawn in the moment in which the pod was bound (docs/troubleshooting.md)."""
AWAY_SECONDS = 25.0
"""So long after agent, kubelet or spec changed, a pod may meet a withdrawal: the node's status is 10 s old at most."""
SERVER_ERRORS = frozenset({700, 719, 805, 806, 807})
"""What a client gets that starts on a server which is failing, before anybody has seen that."""

_PROGRAMS = {
    Kind.HOG: """
        code = 0
        try:
            context.alloc(9 << 30)
        except CudaError as error:
            code = error.code
        tell("refused", code=code)
        context.close()
    """,
    Kind.FAULTY: """
        context.fault("illegal_address")
    """,
    Kind.CRASHING: """
        context.launch(1000)
        os._exit(1)
    """,
}
_PROLOGUE = """
import json, os
from gpushare.simulation.client import CudaError, SimulatedContext
def tell(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)
try:
    context = SimulatedContext.create()
except CudaError as error:
    tell("gpu-error", code=error.code)
    raise SystemExit(3)
tell("started", uuid=context.uuid)
"""


def program(kind: Kind) -> str:
    lines = _PROGRAMS[kind].splitlines()
    return _PROLOGUE + "\n".join(line.removeprefix(" " * 8) for line in lines)


class Performer:
    def __init__(self, harness: Harness, tenant: Tenant, world: World) -> None:
        self.harness, self.tenant, self.world = harness, tenant, world
        self._disturbed_at = -AWAY_SECONDS
        self.steps: dict[str, Callable[[Step], None]] = {
            "create": self._apply,
            "resize": self._apply,
            "delete": self._delete,
            "start": self._start,
            "end": self._end,
            "kill-agent": self._kill_agent,
            "kill-operator": lambda step: harness.restart_pods("operator", force=True),
            "kill-daemon": lambda step: self._kill(step, "controlPid"),
            "kill-server": lambda step: self._kill(step, "serverPid"),
            "restart-kubelet": self._restart_kubelet,
        }

    def do(self, step: Step) -> None:
        self.steps[step.verb](step)
        time.sleep(step.pause)

    def _apply(self, step: Step) -> None:
        change = self.world.create if step.verb == "create" else self.world.resize
        change(step.share, step.per_gpu, step.threads)
        self.disturbed()
        threads = {"default": step.threads, "max": step.threads}
        Share(self.harness, step.share).apply(step.per_gpu, threads, per_node=1)

    def _delete(self, step: Step) -> None:
        self.world.delete(step.share)
        self.disturbed()
        Share(self.harness, step.share).delete(wait=False)

    def disturbed(self) -> None:
        """Notes that from now on a pod may meet slots that were withdrawn a moment ago."""
        self._disturbed_at = time.monotonic()

    # -- clients

    def _start(self, step: Step) -> None:
        kind = step.kind
        assert kind is not None
        names = [self.world.new_name(kind) for _ in range(step.count)]
        # One alone meets a poisoned server: of several at once, nobody knows which came before it was replaced.
        batches = (names[:1], names[1:]) if self.world.shares[step.share].poisoned else (names,)
        for batch in filter(None, batches):
            began, poisoned = time.monotonic(), self.world.shares[step.share].poisoned
            self.tenant.start(*(self.pod(name, step) for name in batch))
            for name in batch:
                self._await_start(Client(name, step.share, kind), began, poisoned)

    def pod(self, name: str, step: Step) -> Object:
        """A client of the step's kind."""
        match step.kind:
            case Kind.WORKER:
                return self.tenant.pod(name, step.share, "depart", "--report-every", "0.3")
            case Kind.VICTIM:
                return self.tenant.pod(name, step.share, "depart", "--role", "victim", "--kernel-ms", "200")
        assert step.kind is not None
        return self.tenant.pod(name, step.share, command=["python", "-c", program(step.kind)], grace=1)

    def _await_start(self, client: Client, began: float, poisoned: bool) -> None:
        """`poisoned`: the share's server was when the client began."""
        share = self.world.shares[client.share]
        last = "refused" if client.kind is Kind.HOG else "started"

        def outcome() -> str:
            if self.tenant.events_of(client.name, last):
                return "started"
            errors = self.tenant.events_of(client.name, "gpu-error")
            if errors:
                return f"error {errors[0]['code']}"
            status = self.tenant.kubectl.get("pod", client.name)["status"]
            return str(status.get("reason") or "failed") if status.get("phase") == "Failed" else ""

        told = wait_until(f"{client.name} starts", outcome, START_SECONDS, lambda: self.tenant.explain(client.name))
        if told != "started":
            self._not_started(client, told, began, poisoned)
        elif client.kind in STAYING:
            self.world.started(client)
        elif client.kind in HARMFUL:
            self._harm(client)
        else:
            (refused,) = self.tenant.events_of(client.name, "refused")
            assert refused["code"] == 2, f"{client.name} got what it was not granted: {refused}"
            share.poisoned = False
            self.tenant.delete_pods(client.name)

    def _not_started(self, client: Client, told: str, began: float, poisoned: bool) -> None:
        share = self.world.shares[client.share]
        withdrawn = told == WITHDRAWN and began - self._disturbed_at < AWAY_SECONDS
        failing = told.startswith("error") and int(told.split()[1]) in SERVER_ERRORS
        lawful = withdrawn or (failing and (share.unsure or poisoned))
        assert lawful, f"{client.name} did not start: {told}; {self.tenant.explain(client.name)}"
        if failing and poisoned:
            self.world.gpu_failed(client.share)
        share.poisoned = False
        self.tenant.delete_pods(client.name)

    def _harm(self, client: Client) -> None:
        if client.kind is Kind.FAULTY:
            self.world.gpu_failed(client.share)
        else:
            self.world.crashed(client.share)
        self.tenant.delete_pods(client.name)

    def _end(self, step: Step) -> None:
        if self.world.agent_away and any(self.world.clients[name].kind is Kind.VICTIM for name in step.clients):
            # Nobody guards a departure while the agent is away (docs/architecture.md).
            self.harness.wait_component("agent")
            self.world.agent_away = False
        for name in step.clients:
            self.world.ended(name)
        self.tenant.kubectl.delete("pods", *step.clients, seconds=90)

    # -- accidents

    def _kill_agent(self, step: Step) -> None:
        self.world.agent_away = True
        self.disturbed()
        self.harness.restart_pods("agent", force=True)

    def _restart_kubelet(self, step: Step) -> None:
        self.disturbed()
        processes.replace(self.harness.layout, "kubelet", signal.SIGTERM)

    def _kill(self, step: Step, which: str) -> None:
        """The process that the supervisor's state.json names; nothing where there is none at the moment."""
        share = Share(self.harness, step.share)
        try:
            pid = node.daemon_of(self.harness, share).get(which)
        except (StopIteration, OSError, ValueError):
            return
        if pid:
            self.world.gpu_failed(step.share)
            node.kill_if_there(self.harness, pid)
