"""What goes on through an upgrade: a share by slots and one by claims, with clients that check each result.

`goes_on` is asked in each state between two releases. It looks at the old (nobody was ended), makes something new of
each kind, and lets one depart in mid-kernel, which is the agent's work with the MPS daemon.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localcluster.kubectl import Object
from localcluster.stack import Stack
from tests.cluster import claims
from tests.cluster.clients.test_departure import ENDLESS_MS, ends
from tests.cluster.harness import Harness, Share, Tenant, condition, wait_until
from tests.cluster.node import daemon_of

SLOTTED, CLAIMED = "slotted", "claimed"
CLIENT = ("depart", "--report-every", "0.3")
SIZE, PERCENT = "small", 10


@dataclass(frozen=True, slots=True)
class Started:
    """A container that nothing may end."""

    uid: str
    checks: int


class Life:
    def __init__(self, harness: Harness, tenant: Tenant, slotted: Share, claimed: Share) -> None:
        self.harness = harness
        self.tenant = tenant
        self.slotted = slotted
        self.claimed = claimed
        self._clients: dict[str, list[str]] = {SLOTTED: [], CLAIMED: []}
        self._uids: dict[str, str] = {}
        self._count = 0

    def start(self, share: str, stack: Stack, count: int = 2) -> None:
        """Clients with the image of a release."""
        names = []
        for _ in range(count):
            self._count += 1
            name = f"{share}-{self._count}"
            self.tenant.start_replaced(_with_image(self._pod(name, share, *CLIENT), stack))
            names.append(name)
        for name in names:
            self.tenant.wait_event(name, "progress")
            self._uids[name] = self.tenant.kubectl.get("pod", name)["metadata"]["uid"]
        self._clients[share] += names

    def leave(self, share: str) -> None:
        """All clients of the share depart."""
        self.tenant.delete_pods(*self._clients[share])
        self._clients[share] = []

    def servers(self) -> Mapping[str, int]:
        """The PID of each share's MPS server: another one has no client of the one before."""
        return {share.name: int(daemon_of(self.harness, share)["serverPid"]) for share in (self.slotted, self.claimed)}

    def goes_on(self, stack: Stack) -> None:
        """`stack`: the release that users' new pods are of."""
        for share in (self.slotted, self.claimed):
            share.wait_ready(seconds=90)
        self._objects_are_valid()
        self._limits_move()
        for name in (SLOTTED, CLAIMED):
            self._newcomer(name, stack)
        self._departure(stack)
        self._nobody_ended()
        wait_until("the node is well", self._well, 60, lambda: self.harness.gpu_node()["status"])

    def _pod(self, name: str, share: str, *arguments: str, **options: Any) -> Object:
        if share == SLOTTED:
            return self.tenant.pod(name, share, *arguments, **options)
        return claims.sized(self.tenant, name, share, SIZE, *arguments, **options)

    def _objects_are_valid(self) -> None:
        """Whoever writes them as they are stored is not refused, now as before."""
        for kind in ("gpushares", "gpunodes"):
            for item in self.harness.kubectl.items(kind):
                self.harness.kubectl("replace", "--dry-run=server", "-f", "-", stdin=json.dumps(item))

    def _limits_move(self) -> None:
        """What the operator and the agent of one release decide, the supervisor of another does and reads back."""
        self._count += 1
        memory = 4096 + 64 * self._count
        spec = {"clients": {"memory": {"default": f"{memory}Mi"}}}
        self.harness.kubectl("patch", "gpushare", SLOTTED, "--type=merge", f"--patch={json.dumps({'spec': spec})}")
        wait_until("the limits in force", lambda: self._current_mib() == memory, 60, self.harness.gpu_node)
        self.slotted.wait_ready()

    def _current_mib(self) -> int:
        daemons = self.harness.gpu_node()["status"]["daemons"]
        state = next(daemon for daemon in daemons if daemon["share"] == SLOTTED)
        return int(state.get("currentLimits", {}).get("memoryMib", 0))

    def _newcomer(self, share: str, stack: Stack) -> None:
        self._count += 1
        name = f"new-{self._count}"
        self.tenant.start_replaced(_with_image(self._pod(name, share, "limits"), stack))
        seen = self.tenant.wait_event(name, "limits")
        assert seen["problems"] == [], (share, seen)
        if share == CLAIMED:
            assert seen["granted"]["threads"] == PERCENT
        self.tenant.delete_pods(name)

    def _departure(self, stack: Stack) -> None:
        """Deletes a client; without an agent that ends it in order, its end would be that of its neighbours."""
        self._count += 1
        name = f"victim-{self._count}"
        victim = self._pod(name, SLOTTED, "depart", "--role", "victim", "--kernel-ms", ENDLESS_MS, grace=3)
        self.tenant.start_replaced(_with_image(victim, stack))
        self.tenant.wait_event(name, "started")
        self.tenant.kubectl.delete("pod", name)
        assert len(ends(self.tenant, name)) == 1

    def _nobody_ended(self) -> None:
        names = [name for names in self._clients.values() for name in names]
        self.tenant.go_on(names)
        pods = {pod["metadata"]["name"]: pod for pod in self.tenant.running()}
        for name in names:
            assert pods[name]["metadata"]["uid"] == self._uids[name], f"{name} was made again"
            assert [status["restartCount"] for status in pods[name]["status"]["containerStatuses"]] == [0], name

    def _well(self) -> bool:
        status = self.harness.gpu_node()["status"]
        reporting = condition({"status": status}, "AgentReporting").get("status") == "True"
        ready = [daemon["share"] for daemon in status["daemons"] if daemon["ready"]]
        held = sorted(len(holder["slots"]) for holder in status.get("holders", []))
        expected = sorted(len(names) for names in self._clients.values() if names)
        return reporting and sorted(ready) == [CLAIMED, SLOTTED] and held == expected and not status.get("findings")


def _with_image(pod: Object, stack: Stack) -> Object:
    [container] = pod["spec"]["containers"]
    container["image"] = stack.workload_image
    return pod
