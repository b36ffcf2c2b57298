"""What the cluster tests say in words of the domain: shares, clients, slots, and waiting with a reason."""

import errno
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from localcluster.cluster import cluster, processes
from localcluster.cluster.layout import Layout
from localcluster.kubectl import CommandError, Kubectl, Object
from localcluster.stack import NAMESPACE, Stack, embedded, install
from tests.cluster.reads import Api, ReadingKubectl

T = TypeVar("T")
NODE = "node1"
POLL = 0.25
MOST_REST = 2.0
"""A question that takes long, such as a program's start, rests twice as long, or so many seconds: else it would be a
core's whole work, and the tests on the other clusters would wait for it."""
MOST_LINKS = 40
GPU_SHARES = "/apis/gpushare.dev/v1alpha1/gpushares"
CLUSTER_EVENTS = "default"
"""Kubernetes keeps events about objects without a namespace here."""
PATIENCE = int(os.environ.get("GPUSHARE_TEST_PATIENCE", "3"))


class Harness:
    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.api = Api(self.layout)
        self.kubectl: Kubectl = ReadingKubectl(stack.environment, api=self.api)
        self.system = self.kubectl.within(NAMESPACE)
        self._earlier: frozenset[tuple[str, str]] = frozenset()

    def begin(self) -> None:
        """Call this when a test begins. Events of earlier tests on the same cluster no longer count."""
        self._earlier = frozenset(event_version(event) for event in self.kubectl.within(CLUSTER_EVENTS).items("events"))

    def cluster_events(self, kind: str, name: str, reason: str) -> list[Object]:
        """Events about an object without a namespace, written or counted up since the test began.

        `kind`: such as GpuNode. `name`: of the object; an older object of that name is another test's, so callers that
        create objects under one name again compare `involvedObject.uid` too.
        """
        selector = f"involvedObject.kind={kind},involvedObject.name={name},reason={reason}"
        events = self.kubectl.within(CLUSTER_EVENTS).items("events", "--field-selector", selector)
        return [event for event in events if event_version(event) not in self._earlier]

    # -- the embedded cluster

    @property
    def layout(self) -> Layout:
        assert self.stack.embedded is not None
        return cluster.running(self.stack.embedded)

    def in_node(self, path: str) -> Path:
        """A path of the node's file system as this machine reaches it, with the node's own links followed."""
        return within(Path(f"/proc/{processes.init(self.layout)}/root"), path)

    def gpu_dirs(self) -> dict[str, Path]:
        root = self.in_node("/run/gpushare")
        return {entry.name: entry for entry in root.iterdir() if entry.name.startswith("GPU-")} if root.exists() else {}

    def audit(self) -> Iterator[dict[str, Any]]:
        with (self.layout.logs / "audit.log").open() as lines:
            for line in lines:
                yield json.loads(line)

    # -- shares

    @contextmanager
    def share(self, name: str, ready: bool = True, **spec: Any) -> Iterator["Share"]:
        """Creates a GpuShare, waits until it is Ready, and afterwards deletes it and waits until it is gone."""
        share = Share(self, name)
        share.apply(**spec)
        try:
            if ready:
                share.wait_ready()
            yield share
        finally:
            share.delete()

    # -- namespaces and pods

    @contextmanager
    def namespace(self, prefix: str = "tenant", enforce: str = "restricted", **labels: str) -> Iterator["Tenant"]:
        """A namespace that enforces a Pod Security Standard."""
        name = f"{prefix}-{uuid.uuid4().hex[:6]}"
        standard = {"pod-security.kubernetes.io/enforce": enforce}
        metadata = {"name": name, "labels": standard | labels}
        self.api.send("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        tenant = Tenant(self, name)
        wait_until("the namespace's ServiceAccount", lambda: tenant.kubectl.find("serviceaccount", "default"))
        try:
            yield tenant
        finally:
            tenant.delete_pods()
            self.api.send("DELETE", f"/api/v1/namespaces/{name}")

    def restart_pods(self, component: str, *, force: bool = False) -> None:
        """Deletes our own pods of a component; their controller makes new ones."""
        grace = ["--grace-period=0", "--force"] if force else []
        self.system.delete("pods", f"--selector=app.kubernetes.io/component={component}", *grace)

    def pods_of(self, component: str) -> list[Object]:
        """Our own pods of a component."""
        return self.system.items("pods", f"--selector=app.kubernetes.io/component={component}")

    def component_ready(self, component: str) -> bool:
        pods = self.pods_of(component)
        return bool(pods) and all(is_ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in pods)

    def wait_component(self, component: str, seconds: float = 60) -> None:
        wait_until(f"{component} ready", lambda: self.component_ready(component), seconds)

    def gpu_node(self) -> Object:
        return self.kubectl.get("gpunode", NODE)

    def compute_modes(self) -> set[str]:
        """The compute modes as NVML told the agent last: what the agent sets itself is read back at once."""
        return {gpu["computeMode"] for gpu in self.gpu_node()["status"]["gpus"]}

    def capacity(self, share: str) -> int:
        return self.allocatable(f"gpushare.dev/{share}")

    def allocatable(self, resource: str) -> int:
        node = self.kubectl.get("node", NODE)
        return int(node["status"]["allocatable"].get(resource, "0"))

    def held_by_gpu(self, share: str) -> dict[str, int]:
        """Slots that containers hold, as the agent reports them; by UUID."""
        holders = self.gpu_node().get("status", {}).get("holders", [])
        return {holder["uuid"]: len(holder["slots"]) for holder in holders if holder["share"] == share}

    def dump(self, directory: Path) -> None:
        """Everything that helps to understand a failure, into `directory`."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        wanted = {
            "objects.yaml": ("get", "gpushares,gpunodes,nodes,resourceslices", "-o", "yaml"),
            "claims.yaml": ("get", "resourceclaims", "--all-namespaces", "-o", "yaml"),
            "pods.yaml": ("get", "pods", "--all-namespaces", "-o", "yaml"),
            "pods.txt": ("get", "pods", "--all-namespaces", "-o", "wide"),
            "events.txt": ("get", "events", "--all-namespaces", "--sort-by=.metadata.creationTimestamp"),
        }
        for part in ("operator", "webhook", "agent", "mps", "simulated-driver"):
            selector = f"--selector=app.kubernetes.io/component={part}"
            wanted[f"{part}.log"] = ("logs", "--namespace", NAMESPACE, selector, "--tail=2000", "--prefix")
        for file, arguments in wanted.items():
            try:
                (directory / file).write_text(self.kubectl(*arguments))
            except CommandError as error:
                (directory / file).write_text(str(error))
        for part in ("kubelet", "containerd"):
            shutil.copy(self.layout.logs / f"{part}.log", directory)


@contextmanager
def own_cluster(name: str, *archives: Path) -> Iterator[Harness]:
    """A cluster that only one test module uses, with gpushare and the images of these archives. Ends it afterwards."""
    stack = embedded(name)
    try:
        install(stack)
        harness = Harness(stack)
        cluster.load_images(harness.layout, list(archives))
        yield harness
    finally:
        cluster.down(name)


class Share:
    def __init__(self, harness: Harness, name: str) -> None:
        self.harness = harness
        self.name = name
        self.resource = f"gpushare.dev/{name}"

    def apply(
        self,
        per_gpu: int = 8,
        threads: dict[str, int] | None = None,
        memory: dict[str, Any] | None = None,
        per_node: int | None = None,
        **spec: Any,
    ) -> None:
        clients: dict[str, Any] = {
            "perGpu": per_gpu,
            "threads": threads or {"default": 25, "max": 50},
            "memory": memory or {"default": "8Gi"},
        }
        gpus = {"gpus": {"perNode": per_node}} if per_node else {}
        self.harness.kubectl.apply(gpu_share(self.name, {"clients": clients} | gpus | spec))

    def get(self) -> Object:
        return self.harness.kubectl.get("gpushare", self.name)

    def condition(self, kind: str = "Ready") -> dict[str, Any]:
        return condition(self.get(), kind)

    def events(self, reason: str) -> list[str]:
        """Messages about this very share, not about an earlier one of its name."""
        uid = self.get()["metadata"]["uid"]
        events = self.harness.cluster_events("GpuShare", self.name, reason)
        return [event["message"] for event in events if event["involvedObject"].get("uid") == uid]

    def wait_ready(self, gpus: int | None = None, seconds: float = 60) -> None:
        def ready() -> bool:
            share = self.get()
            status = share.get("status", {})
            current = status.get("observedGeneration") == share["metadata"]["generation"]
            counted = gpus is None or status.get("gpus", {}).get("ready") == gpus
            return current and counted and condition(share, "Ready").get("status") == "True"

        wait_until(f"GpuShare {self.name} Ready", ready, seconds, lambda: self.condition())

    def wait_capacity(self, slots: int, seconds: float = 30) -> None:
        wait_until(f"{slots} slots", lambda: self.harness.capacity(self.name) == slots, seconds,
                   lambda: self.harness.capacity(self.name))  # fmt: skip

    def delete(self, wait: bool = True) -> None:
        stored = self.harness.kubectl.find("gpushare", self.name)
        if stored is None or not self.harness.api.send("DELETE", f"{GPU_SHARES}/{self.name}") or not wait:
            return
        uid = stored["metadata"]["uid"]
        wait_until(f"GpuShare {self.name} is gone", lambda: self._uid() != uid, 90, lambda: stored)

    def _uid(self) -> str:
        """Empty: there is none of this name."""
        stored = self.harness.kubectl.find("gpushare", self.name)
        return str(stored["metadata"]["uid"]) if stored else ""


class Tenant:
    """A namespace of clients."""

    def __init__(self, harness: Harness, name: str) -> None:
        self.harness = harness
        self.name = name
        self.kubectl: Kubectl = harness.kubectl.within(name)

    def pod(self, name: str, share: str, *arguments: str, **options: Any) -> Object:
        return client_pod(name, self.name, self.harness.stack.workload_image, share, arguments, **options)

    def start(self, *pods: Object) -> None:
        self.kubectl.create(*pods)

    def start_replaced(self, pod: Object, seconds: float = 120) -> None:
        """Starts a pod and waits for its container, replacing it as a Job would where the kubelet rejects it."""
        name = pod["metadata"]["name"]
        self.start(pod)

        def started() -> bool:
            self.replace_rejected(pod)
            status = self.kubectl.get("pod", name)["status"]
            return any("waiting" not in container.get("state", {}) for container in status.get("containerStatuses", []))

        wait_until(f"the container of {name}", started, seconds, lambda: self.explain(name))

    def replace_rejected(self, *pods: Object) -> None:
        """Makes those of the pods again that the kubelet has rejected.

        Slots withdrawn a moment ago are still on offer in the scheduler's view of the node: a pod bound to one of those
        is failed by the kubelet for good.
        """
        rejected = {listed["metadata"]["name"] for listed in self.pods() if is_rejected(listed)}
        again = [pod for pod in pods if pod["metadata"]["name"] in rejected]
        if again:
            self.kubectl.delete("pods", *(pod["metadata"]["name"] for pod in again))
            self.start(*again)

    def neighbours(self, share: str, count: int, prefix: str = "neighbour", **options: Any) -> list[str]:
        """Starts `count` clients that check their own results, and waits until each has checked some."""
        names = [f"{prefix}-{number}" for number in range(count)]
        self.start(*(self.pod(name, share, "depart", "--report-every", "0.3", **options) for name in names))
        for name in names:
            self.wait_event(name, "progress")
        return names

    def pods(self) -> list[Object]:
        return self.kubectl.items("pods")

    def running(self) -> list[Object]:
        return [pod for pod in self.pods() if pod["status"].get("phase") == "Running"]

    def log(self, name: str) -> list[dict[str, Any]]:
        """The JSON lines of a client's current container; empty before it runs."""
        try:
            text = self.kubectl.logs(name)
        except CommandError:
            return []
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def events_of(self, name: str, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.log(name) if line["event"] == kind]

    def wait_event(self, name: str, kind: str, seconds: float = 60) -> dict[str, Any]:
        """The first line of that kind in the client's log."""
        events = wait_until(
            f"{kind} of {name}", lambda: self.events_of(name, kind), seconds, lambda: self.explain(name)
        )
        return events[0]

    def wait_ended(self, name: str, seconds: float = 60) -> str:
        """The phase in which the pod ended: Succeeded or Failed."""

        def ended() -> str:
            phase = str(self.kubectl.get("pod", name)["status"].get("phase"))
            return phase if phase in ("Succeeded", "Failed") else ""

        return wait_until(f"{name} ended", ended, seconds, lambda: self.explain(name))

    def checks(self, name: str) -> int:
        return max((line["checks"] for line in self.log(name) if "checks" in line), default=0)

    def go_on(self, names: Collection[str]) -> None:
        """Waits until each of these clients has checked more of its results, or some since it started again."""
        for name, checks in {name: self.checks(name) for name in names}.items():
            self._wait_checks(name, lambda now, before=checks: now not in (0, before), 30)

    def wait_checks(self, name: str, above: int, seconds: float = 30) -> None:
        """Waits until the client has checked more of its results than that: it lives, and the GPU works for it."""
        self._wait_checks(name, lambda now: now > above, seconds)

    def _wait_checks(self, name: str, enough: Callable[[int], bool], seconds: float) -> None:
        wait_until(f"{name} goes on", lambda: enough(self.checks(name)), seconds, lambda: self.explain(name))

    def explain(self, name: str) -> str:
        pod = self.kubectl.find("pod", name) or {}
        events = self.kubectl.items("events", "--field-selector", f"involvedObject.name={name}")
        messages = [f"{event.get('reason')}: {event.get('message')}" for event in events][-5:]
        return f"{pod.get('status', {})} {messages} log={self.log(name)[-3:]}"

    def kubernetes_events(self, name: str) -> list[Object]:
        return self.kubectl.items("events", "--field-selector", f"involvedObject.name={name}")

    def unscheduled_message(self, name: str) -> str:
        pod = self.kubectl.get("pod", name)
        return str(condition(pod, "PodScheduled").get("message", ""))

    def delete_pods(self, *names: str) -> None:
        """These, or all. Returns once they are gone."""
        pods = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in self.pods()}
        going = {uid: name for uid, name in pods.items() if not names or name in names}
        for name in going.values():
            self.harness.api.send("DELETE", f"/api/v1/namespaces/{self.name}/pods/{name}?gracePeriodSeconds=1")

        def gone() -> bool:
            return not going.keys() & {pod["metadata"]["uid"] for pod in self.pods()}

        wait_until(f"{', '.join(going.values())} are gone", gone, 90, self.pods)


def within(root: Path, path: str) -> Path:
    """What `path` is below `root`. The kernel would follow a link such as /var/run from the root of this machine; the
    links below /proc are its own, and lead where they should.
    """
    path_so_far, rest = root, [part for part in path.split("/") if part]
    for _ in range(MOST_LINKS):
        while rest and not (path_so_far / rest[0]).is_symlink():
            path_so_far /= rest.pop(0)
        if not rest or path_so_far.is_relative_to(root / "proc"):
            return path_so_far.joinpath(*rest)
        target = (path_so_far / rest.pop(0)).readlink()
        path_so_far = root if target.is_absolute() else path_so_far
        rest = [part for part in target.parts if part != "/"] + rest
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def event_version(event: Object) -> tuple[str, str]:
    """(uid, resourceVersion): an event that is counted up gets a new version."""
    return event["metadata"]["uid"], event["metadata"]["resourceVersion"]


def gpu_share(name: str, spec: dict[str, Any]) -> Object:
    return {"apiVersion": "gpushare.dev/v1alpha1", "kind": "GpuShare", "metadata": {"name": name}, "spec": spec}


def client_pod(
    name: str,
    namespace: str,
    image: str,
    share: str,
    arguments: tuple[str, ...],
    *,
    annotations: dict[str, str] | None = None,
    command: list[str] | None = None,
    restart: str = "Never",
    grace: int = 5,
    user: int = 1000,
    env: list[dict[str, Any]] | None = None,
    priority: str = "",
) -> Object:
    """`grace`: seconds. `priority`: name of a PriorityClass; empty: none."""
    container: dict[str, Any] = {
        "name": "app",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "resources": {"limits": {f"gpushare.dev/{share}": "1"}},
        "env": env or [],
    }
    container |= {"command": command} if command else {"args": ["run", *arguments]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations or {}},
        "spec": {
            "restartPolicy": restart,
            "terminationGracePeriodSeconds": grace,
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "runAsUser": user, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            **({"priorityClassName": priority} if priority else {}),
        },
    }


def condition(obj: Object, kind: str) -> dict[str, Any]:
    return next((item for item in obj.get("status", {}).get("conditions", []) if item["type"] == kind), {})


def is_rejected(pod: Object) -> bool:
    """Tells whether the kubelet failed it before anything of it started, because its slot had been withdrawn."""
    return str(pod["status"].get("reason", "")).startswith(("UnexpectedAdmissionError", "OutOfgpushare.dev/"))


def has_container(pod: Object) -> bool:
    return any("running" in status.get("state", {}) for status in pod["status"].get("containerStatuses", []))


def is_ready(pod: Object) -> bool:
    return condition(pod, "Ready").get("status") == "True"


def wait_until(
    what: str, probe: Callable[[], T | None], seconds: float = 30, explain: Callable[[], object] = lambda: ""
) -> T:
    """The first truthy answer of `probe`. A refused request counts as not yet; fails with `explain()`.

    `seconds`: generous for a machine that has little else to do; a busy one has PATIENCE times as many
    (GPUSHARE_TEST_PATIENCE: 1 where the machine's time is dear).
    """
    end = time.monotonic() + seconds * PATIENCE
    last: object = None
    while True:
        asked = time.monotonic()
        try:
            answer = probe()
            if answer:
                return answer
            last = answer
        except CommandError as error:
            last = error
        now = time.monotonic()
        if now > end:
            raise AssertionError(f"{what}: not within {seconds * PATIENCE:.0f} s; last: {last}; {explain()}")
        time.sleep(max(POLL, min(2 * (now - asked), MOST_REST)))


def holds_for(what: str, probe: Callable[[], bool], seconds: float) -> None:
    """Fails as soon as `probe` is false within the time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert probe(), what
        time.sleep(POLL)
