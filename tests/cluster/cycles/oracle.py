"""Compares the cluster with the world: at every moment, after each step, once all is settled, and at the end."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from localcluster.kubectl import CommandError, Object
from tests.cluster.cycles.world import Client, Kind, World
from tests.cluster.harness import NODE, Harness, Tenant, condition, has_container, wait_until

SETTLE_SECONDS = 30
LEASE_SECONDS = 40
"""What a killed operator's successor waits for the Lease, and a little."""
SAMPLE_SECONDS = 0.3
STABLE_SECONDS = 4.0
"""A supervisor looks every two seconds, and the agent every second."""


class Oracle:
    def __init__(self, harness: Harness, tenant: Tenant, world: World) -> None:
        self.harness, self.tenant, self.world = harness, tenant, world
        self.samples = 0
        self._broken: list[str] = []
        self._running: Counter[str] = Counter()

    # -- at every moment

    @contextmanager
    def sampling(self) -> Iterator[None]:
        done = threading.Event()
        thread = threading.Thread(target=self._sample_until, args=(done,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join(timeout=60)

    def _sample_until(self, done: threading.Event) -> None:
        while not done.wait(SAMPLE_SECONDS):
            try:
                running = Counter(share_of(pod) for pod in self.tenant.pods() if has_container(pod))
            except CommandError:
                continue
            for name, count in running.items():
                share = self.world.shares.get(name)
                if share is not None and count > max(share.bound, share.per_gpu):
                    self._broken.append(f"{count} containers on the GPU of {name}, {share.bound} are allowed")
            self.samples += 1

    # -- after each step

    def check(self) -> None:
        """Nobody whom the world knows alive has been touched, and no bound was broken since."""
        assert not self._broken, self._broken[0]
        pods = {pod["metadata"]["name"]: pod for pod in self.tenant.pods()}
        for client in self.world.clients.values():
            self._check_alive(client, pods.get(client.name))

    def _check_alive(self, client: Client, pod: Object | None) -> None:
        assert pod is not None, f"{client.name} of {client.share} is gone"
        unharmed = has_container(pod) and not pod["metadata"].get("deletionTimestamp")
        unharmed &= all(status["restartCount"] == 0 for status in pod["status"].get("containerStatuses", []))
        assert unharmed, f"{client.name} of {client.share} was harmed: {self.tenant.explain(client.name)}"

    # -- once all is settled

    def settle(self, after_operator: bool) -> float:
        """Waits until everything is as the world says; returns the seconds that it took."""
        began = time.monotonic()
        self._clear_doomed()
        limit = SETTLE_SECONDS + (LEASE_SECONDS if after_operator else 0)
        self.world.settled()
        wait_until("all is settled", self._settled_for_a_while, limit, lambda: self.unsettled())
        took = time.monotonic() - began
        self.harness.wait_component("agent")
        self.check()
        for client in self.world.clients.values():
            if client.kind is Kind.WORKER:
                self.tenant.wait_checks(client.name, above=self.tenant.checks(client.name))
            else:
                assert not self.tenant.events_of(client.name, "gpu-error"), self.tenant.explain(client.name)
        return took

    def _settled_for_a_while(self) -> bool:
        """What was just killed may not have been missed yet."""
        end = time.monotonic() + STABLE_SECONDS
        while not self.unsettled():
            if time.monotonic() > end:
                return True
            time.sleep(SAMPLE_SECONDS)
        return False

    def _clear_doomed(self) -> None:
        """A client whose context failed ends by itself: nothing of ours has to help."""
        if not self.world.doomed:
            return
        names = sorted(self.world.doomed)
        wait_until("the harmed clients end", lambda: not self._still_there(names), 30, lambda: self._still_there(names))
        self.tenant.delete_pods(*names)

    def _still_there(self, names: list[str]) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.tenant.running() if pod["metadata"]["name"] in names]

    def unsettled(self) -> list[str]:
        """What is not yet as the world says, in words."""
        problems = []
        listed = {share["metadata"]["name"]: share for share in self.harness.kubectl.items("gpushares")}
        for name in listed.keys() - self.world.shares.keys():
            problems.append(f"{name} is still there")
        for share in self.world.shares.values():
            live = listed.get(share.name)
            if live is None:
                problems.append(f"{share.name} is missing")
                continue
            wanted = "Draining" if share.deleting else "Ready" if share.has_gpu else "GpusUnavailable"
            told = condition(live, "Ready")
            current = live.get("status", {}).get("observedGeneration") == live["metadata"]["generation"]
            if told.get("reason") != wanted or not current:
                problems.append(f"{share.name} should say {wanted}: {told}, current: {current}")
            if (capacity := self.harness.capacity(share.name)) != self.world.capacity(share):
                problems.append(f"{share.name} offers {capacity} slots instead of {self.world.capacity(share)}")
        return problems


def share_of(pod: Object) -> str:
    limits = pod["spec"]["containers"][0]["resources"].get("limits", {})
    return next((key.removeprefix("gpushare.dev/") for key in limits if key.startswith("gpushare.dev/")), "")


def leftovers(harness: Harness) -> list[str]:
    """What the shares have left behind on the node and in the API, in words; empty where it is as before them."""
    left = [f"directory {name}" for name in harness.gpu_dirs()]
    left += [f"CDI spec {path.name}" for path in harness.in_node("/var/run/cdi").glob("*gpushare*")]
    labels = harness.kubectl.get("node", NODE)["metadata"]["labels"]
    left += [f"label {label}" for label in labels if label.startswith("share.gpushare.dev/")]
    left += [f"GpuShare {share['metadata']['name']}" for share in harness.kubectl.items("gpushares")]
    mps = "--selector=app.kubernetes.io/component=mps"
    left += [f"DaemonSet {daemon_set['metadata']['name']}" for daemon_set in harness.system.items("daemonsets", mps)]
    left += [f"pod {pod['metadata']['name']}" for pod in harness.system.items("pods", mps)]
    status = harness.gpu_node()["status"]
    left += [f"{gpu['uuid']} is {gpu['computeMode']}" for gpu in status["gpus"] if gpu["computeMode"] != "Default"]
    left += [f"daemon of {daemon['share']}" for daemon in status.get("daemons") or []]
    left += [f"holders of {holder['share']}" for holder in status.get("holders") or []]
    return left + [f"process {line}" for line in mps_processes(harness)]


def mps_processes(harness: Harness) -> list[str]:
    """Command lines of control daemons and servers in the node."""
    listed = []
    for entry in harness.in_node("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if "nvidia-cuda-mps-" in words:
            listed.append(f"{entry.name}: {words}")
    return listed
