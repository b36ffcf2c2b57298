"""What a scene does beyond the steps of the random cycles: claims, use above a grant, a roll-out, a drained node, and
the end of the installation.
"""

import json
import threading
from pathlib import Path
from typing import Any

from localcluster.kubectl import CommandError, Object
from localcluster.stack import NAMESPACE, RELEASE, install
from tests.cluster import claims
from tests.cluster.clients import offender
from tests.cluster.cycles.oracle import leftovers
from tests.cluster.cycles.perform import Performer
from tests.cluster.cycles.steps import Step
from tests.cluster.cycles.world import World
from tests.cluster.harness import NODE, Harness, Share, Tenant, wait_until

DELETING = ("--set=uninstall.shares=Delete", "--set=uninstall.timeoutSeconds=120")
OWN_CLAIM = ("33", "6000Mi")
"""Percent of threads and memory of a claim of no named size."""
ABOVE_MIB = 12_000
TERMINATED = 810
"""CUDA's error for a client whose contexts its MPS daemon has ended."""
TOLD = frozenset({"MemoryAboveGrant", "ClientTerminated"})
UNINSTALL_SECONDS = 170.0
OURS = "deployments,daemonsets,secrets,configmaps,jobs,pods"


class Actor(Performer):
    def __init__(self, harness: Harness, tenant: Tenant, world: World) -> None:
        super().__init__(harness, tenant, world)
        self._replaced = ""
        """The uid of the MPS pod that a roll-out is to replace."""
        self.steps |= {
            "create-claimed": lambda step: self._create(step, delivery="ResourceClaim", sizes=claims.SIZES),
            "create-audited": lambda step: self._create(step, enforcement="Audit"),
            "create-strict": lambda step: self._create(step, enforcement="Terminate"),
            "end": self._leave,
            "exceed": self._exceed,
            "dismiss": lambda step: self.tenant.delete_pods(*step.clients),
            "change-template": self._change_template,
            "rolled": self._await_roll_out,
            "drain": self._drain,
            "uncordon": self._uncordon,
            "choose-deletion": lambda step: install(harness.stack, *DELETING),
            "uninstall": self._uninstall,
            "install": lambda step: install(harness.stack),
        }

    # -- claims

    def _create(self, step: Step, **spec: Any) -> None:
        self.world.create(step.share, step.per_gpu, step.threads)
        self.world.shares[step.share].claimed = "delivery" in spec
        self.disturbed()
        threads = {"default": step.threads, "max": 50}
        Share(self.harness, step.share).apply(step.per_gpu, threads, per_node=1, **spec)

    def pod(self, name: str, step: Step) -> Object:
        pod = super().pod(name, step)
        if step.size == "own":
            amounts = dict(zip(("threads", "memory"), OWN_CLAIM, strict=True))
            self.tenant.kubectl.apply(claims.claim(name, f"{step.share}.gpushare.dev", amounts))
            return claims.with_claim(pod, resourceClaimName=name)
        if step.size:
            claims.wait_template(self.tenant, step.size, step.share)
            return claims.with_claim(pod, resourceClaimTemplateName=f"{step.size}.{step.share}")
        return pod

    # -- clients

    def _leave(self, step: Step) -> None:
        """Those of them that a fault has ended meanwhile have their pods deleted all the same."""
        living = tuple(name for name in step.clients if name in self.world.clients)
        if living:
            self._end(Step(step.verb, clients=living))
        dead = [name for name in step.clients if name not in living]
        if dead:
            self.tenant.delete_pods(*dead)
            self.world.doomed -= set(dead)

    def _exceed(self, step: Step) -> None:
        """A client that lost its memory limit. Under Terminate it stays after the end of its contexts: a second
        `terminate_client` for it would hang the daemon, and nobody could start any more. Elsewhere it ends: a client
        that stays after the end of its MPS daemon keeps the next server from the GPU.
        """
        (name,), strict = step.clients, self._is_strict(step.share)
        program = Path(offender.__file__).read_text()
        command = ["python3", "-c", program, str(ABOVE_MIB), "1", "linger" if strict else "exit"]
        environment = [{"name": "PROGRAM", "value": program}]
        self.tenant.start(self.tenant.pod(name, step.share, command=command, env=environment, grace=1))
        self.tenant.wait_event(name, "started")
        wait_until("it is told", lambda: self._told(name) or self._lost(step.share), 60, lambda: self._why(name))
        if strict:
            (error, *_) = wait_until("its end", lambda: self.tenant.events_of(name, "gpu-error"), 60)
            assert error["code"] == TERMINATED or self._lost(step.share), f"{name} ended otherwise: {error}"
        else:
            assert not self.tenant.events_of(name, "gpu-error") or self._lost(step.share), self._why(name)

    def _is_strict(self, share: str) -> bool:
        return bool(Share(self.harness, share).get()["spec"].get("enforcement") == "Terminate")

    def _lost(self, share: str) -> bool:
        """The share's MPS supervisor may end in this scene, and its clients with it."""
        return self.world.shares[share].unsure

    def _told(self, name: str) -> bool:
        return bool(TOLD & {event["reason"] for event in self.tenant.kubernetes_events(name)})

    def _why(self, name: str) -> str:
        return f"{self.harness.gpu_node().get('status', {}).get('findings')} {self.tenant.explain(name)}"

    # -- a roll-out

    def _change_template(self, step: Step) -> None:
        """Another CPU limit for MPS pods: only the operator is replaced at once."""
        pod = self._mps_pod(step.share)
        self._replaced = pod["metadata"]["uid"]
        limit = pod["spec"]["containers"][0]["resources"]["limits"].get("cpu")
        install(self.harness.stack, f"--set=mps.resources.cpuLimit={'3' if limit == '2' else '2'}")
        wait_until("it waits for clients", lambda: self._waits(step.share) or self._is_replaced(step.share), 60)

    def _waits(self, share: str) -> bool:
        return bool(Share(self.harness, share).condition("DaemonsCurrent").get("reason") == "WaitingForClients")

    def _await_roll_out(self, step: Step) -> None:
        wait_until("a new MPS pod", lambda: self._is_replaced(step.share), 60, lambda: self._mps_pod(step.share))

    def _is_replaced(self, share: str) -> bool:
        current = Share(self.harness, share).condition("DaemonsCurrent").get("status") == "True"
        return current and self._mps_pod(share).get("metadata", {}).get("uid", "") not in ("", self._replaced)

    def _mps_pod(self, share: str) -> Object:
        pods = self.harness.system.items("pods", f"--selector=gpushare.dev/share={share}")
        return next((pod for pod in pods if "deletionTimestamp" not in pod["metadata"]), {})

    # -- the node

    def _drain(self, step: Step) -> None:
        """Drains the node as an administrator does, of these clients alone: nobody else could run our own parts."""
        if self.world.agent_away:  # nobody guards a departure meanwhile (docs/architecture.md)
            self.harness.wait_component("agent")
        self.tenant.kubectl("label", "pods", *step.clients, "drained=yes")
        for name in step.clients:
            self.world.clients.pop(name, None)
            self.world.doomed.discard(name)
        self.harness.kubectl("drain", NODE, "--pod-selector=drained=yes", "--force", "--ignore-daemonsets",
                             "--delete-emptydir-data", "--timeout=60s", seconds=90)  # fmt: skip

    def _uncordon(self, step: Step) -> None:
        self.harness.kubectl("uncordon", NODE)

    # -- the installation

    def _uninstall(self, step: Step) -> None:
        """Begun while clients run, who end while it waits for them."""
        failures: list[CommandError] = []
        thread = threading.Thread(target=self._helm_uninstall, args=(failures,))
        thread.start()
        try:
            wait_until("the share is deleted", lambda: self._is_leaving(step.share) or failures, 60)
            self._leave(step)
        finally:
            thread.join(UNINSTALL_SECONDS + 10)
        assert not failures, f"not uninstalled: {failures[0].text}"
        self.world.shares.clear()
        wait_until("our parts are gone", lambda: not self._ours(), 60, self._ours)

    def _helm_uninstall(self, failures: list[CommandError]) -> None:
        try:
            self.harness.stack.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", seconds=UNINSTALL_SECONDS)
        except CommandError as error:
            failures.append(error)

    def _is_leaving(self, share: str) -> bool:
        live = self.harness.kubectl.find("gpushare", share)
        return not live or "deletionTimestamp" in live["metadata"]

    def _ours(self) -> list[str]:
        objects = self.harness.system.items(OURS, "--selector=app.kubernetes.io/name=gpushare")
        return [f"{obj['kind']} {obj['metadata']['name']}" for obj in objects]


def left(harness: Harness) -> list[str]:
    """What shares, claims and clients have left behind on the node and in the API, in words; empty: nothing."""
    problems = leftovers(harness)
    for kind in ("deviceclasses", "resourceclaimtemplates", "resourceclaims"):
        selector = () if kind == "resourceclaims" else ("--selector=gpushare.dev/share",)
        scope = () if kind == "deviceclasses" else ("--all-namespaces",)
        problems += [
            f"{obj['kind']} {obj['metadata']['name']}" for obj in harness.kubectl.items(kind, *scope, *selector)
        ]
    for resource_slice in harness.kubectl.items("resourceslices"):
        problems += [f"device {device['name']}" for device in resource_slice["spec"].get("devices") or ()]
    node = harness.kubectl.get("node", NODE)
    if node["spec"].get("unschedulable"):
        problems.append(f"{NODE} is cordoned")
    return problems + [
        f"finding {json.dumps(finding)}" for finding in harness.gpu_node()["status"].get("findings") or ()
    ]


def mend(harness: Harness) -> None:
    """Mends what a scene left that broke off: the installation is whole again, and the node takes pods."""
    harness.kubectl("uncordon", NODE)
    if _status(harness) != "deployed":
        harness.stack.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--no-hooks", "--ignore-not-found", "--wait")
        install(harness.stack)


def _status(harness: Harness) -> str:
    """The release's status as Helm tells it; empty: there is none."""
    try:
        status = json.loads(harness.stack.helm("status", RELEASE, "--namespace", NAMESPACE, "-o", "json"))
    except CommandError:
        return ""
    return str(status["info"]["status"])
