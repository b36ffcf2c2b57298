"""Whatever ends a pod: its client leaves through the MPS daemon before the kernel is cut off, and the neighbours go on.

The victims of one test stand side by side on one GPU with the neighbours, each in a kernel of three seconds that it
would be killed in: one that was not ended in order would take everybody along.
"""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from localcluster.cluster import processes
from localcluster.kubectl import Object
from tests.cluster.clients.logind import logind
from tests.cluster.harness import NODE, Harness, Tenant, wait_until

NEIGHBOURS = 3
VICTIM = ("depart", "--role", "victim", "--kernel-ms", "3000")
PLAIN_SHELL = ["sh", "-c", f"gpushare-workload run {' '.join(VICTIM)}; sleep 1"]
"""A shell as PID 1 that forwards no signal."""
LASTING_SHELL = ["sh", "-c", f"gpushare-workload run {' '.join(VICTIM)}; sleep 1000"]
LOWEST = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "lowest"},
          "value": -10, "preemptionPolicy": "Never"}  # fmt: skip

Cause = Callable[[Tenant, str], Any]


def victim(tenant: Tenant, share: str, name: str, grace: int = 3, **options: Any) -> Object:
    return tenant.pod(name, share, *VICTIM, grace=grace, **options)


def with_container(pod: Object, **fields: Any) -> Object:
    pod["spec"]["containers"][0] |= fields
    return pod


def with_spec(pod: Object, **fields: Any) -> Object:
    pod["spec"] |= fields
    return pod


def requesting(pod: Object, **amounts: str) -> Object:
    pod["spec"]["containers"][0]["resources"]["requests"] = amounts
    return pod


def as_sidecar(pod: Object) -> Object:
    """The client in a restartable init container, beside a main container that only waits."""
    [client] = pod["spec"]["containers"]
    main = {key: value for key, value in client.items() if key not in ("resources", "args")}
    pod["spec"]["initContainers"] = [client | {"name": "side", "restartPolicy": "Always"}]
    pod["spec"]["containers"] = [main | {"name": "main", "command": ["sleep", "1000"]}]
    return pod


def started(tenant: Tenant, name: str) -> bool:
    """Tells whether the client of a pod is in its kernels, whatever the container is called."""
    return '"started"' in tenant.kubectl("logs", name, "--all-containers", "--prefix=false")


def pods_of(tenant: Tenant, app: str) -> list[str]:
    return [pod["metadata"]["name"] for pod in tenant.kubectl.items("pods", f"--selector=app={app}")]


def controlled(kind: str, version: str, pod: Object, **spec: Any) -> Object:
    """A controller of one pod, both named after it."""
    name, labels = pod["metadata"]["name"], {"app": pod["metadata"]["name"]}
    template = {"metadata": {"labels": labels}, "spec": pod["spec"]}
    metadata = {"name": name, "namespace": pod["metadata"]["namespace"]}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": {"template": template, **spec}}


def terminated(tenant: Tenant, prefix: str) -> list[str]:
    """What was told of ordered ends of the pods whose names begin so."""
    events = tenant.kubectl.items("events", "--field-selector=reason=ClientTerminated")
    return [event["message"] for event in events if event["involvedObject"]["name"].startswith(prefix)]


def everybody_else_goes_on(tenant: Tenant, share: str, victims: list[Object], ends: dict[str, Cause]) -> None:
    """`ends`: by the pod or controller that it ends. Each must be ended in order, and no neighbour notice."""
    neighbours = tenant.neighbours(share, NEIGHBOURS)
    tenant.start(*victims)
    for name in ends:
        pod = wait_until(
            f"the pod of {name}",
            lambda name=name: [pod_name for pod_name in all_pods(tenant) if pod_name.startswith(name)],
        )
        wait_until(
            f"{name} in its kernel", lambda pod=pod[0]: started(tenant, pod), 120, lambda p=pod: explain(tenant, p)
        )
    before = {name: tenant.checks(name) for name in neighbours}
    for name, end in ends.items():
        end(tenant, name)
    for name in ends:
        wait_until(f"{name} ended in order", lambda name=name: terminated(tenant, name), 90, lambda: all_events(tenant))
    time.sleep(4)  # longer than any grace period and any kernel that is left
    for name in neighbours:
        assert not tenant.events_of(name, "gpu-error"), tenant.explain(name)
        assert tenant.checks(name) > before[name], tenant.explain(name)


def all_pods(tenant: Tenant) -> list[str]:
    return [pod["metadata"]["name"] for pod in tenant.pods()]


def explain(tenant: Tenant, pods: list[str]) -> str:
    return " ".join(tenant.explain(name) for name in pods)


def all_events(tenant: Tenant) -> str:
    return "\n".join(f"{event['involvedObject']['name']} {event['reason']} {event['message']}" for event in
                     tenant.kubectl.items("events"))  # fmt: skip


def evict(tenant: Tenant, name: str) -> None:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": tenant.name}}
    path = f"/api/v1/namespaces/{tenant.name}/pods/{name}/eviction"
    tenant.harness.kubectl("create", f"--raw={path}", "--filename=-", stdin=json.dumps(body))


def drain(tenant: Tenant, name: str) -> None:
    try:
        tenant.harness.kubectl("drain", NODE, f"--pod-selector=drained={name}", "--force", "--timeout=60s",
                               "--ignore-daemonsets", "--delete-emptydir-data")  # fmt: skip
    finally:
        tenant.harness.kubectl("uncordon", NODE)


def set_deadline(kind: str) -> Cause:
    patch = '{"spec": {"activeDeadlineSeconds": 1}}'
    return lambda tenant, name: tenant.kubectl("patch", kind, name, "--type=merge", f"--patch={patch}")


def roll(tenant: Tenant, name: str) -> None:
    tenant.kubectl("set", "env", f"deployment/{name}", "ROLLED=1")


def delete(*arguments: str) -> Cause:
    return lambda tenant, name: tenant.kubectl.delete("pod", name, *arguments, wait=False)


def outrank(tenant: Tenant, name: str) -> None:
    """A pod of higher priority wants a slot, and every slot is taken."""
    share = next(iter(tenant.kubectl.get("pod", name)["spec"]["containers"][0]["resources"]["limits"]))
    tenant.start(tenant.pod("preemptor", share.partition("/")[2], "depart"))
    wait_until("the preemption", lambda: terminated(tenant, name), 60, lambda: explain(tenant, [name, "preemptor"]))


def make_room(tenant: Tenant, name: str) -> None:
    """A critical pod comes to the node that fits there only without the victim; the scheduler is not asked."""
    node = tenant.harness.kubectl.get("node", NODE)
    pods = tenant.harness.kubectl.items("pods", "--all-namespaces", f"--field-selector=spec.nodeName={NODE}")
    others = sum(cpu_requests(pod) for pod in pods if pod["metadata"]["name"] != name and is_active(pod))
    pod = tenant.pod("critical", "", command=["sleep", "1000"], grace=0)
    left = millicores(node["status"]["allocatable"]["cpu"]) - others
    with_container(pod, resources={"requests": {"cpu": f"{left}m"}})
    tenant.start(with_spec(pod, nodeName=NODE, priorityClassName="system-node-critical"))


def cpu_requests(pod: Object) -> int:
    requests = (
        container.get("resources", {}).get("requests", {}).get("cpu", "0") for container in pod["spec"]["containers"]
    )
    return sum(millicores(request) for request in requests)


def millicores(quantity: str) -> int:
    return int(quantity[:-1]) if quantity.endswith("m") else 1000 * int(quantity)


def is_active(pod: Object) -> bool:
    return pod["status"].get("phase") not in ("Succeeded", "Failed")


def test_no_way_to_end_a_pod_through_the_api_hurts_its_neighbours(harness: Harness) -> None:
    """Eviction, drain, preemption, a Job's deadline, a rolling update, deletion by force and with any grace period."""
    share = "api-ends"
    ends: dict[str, Cause] = {
        "outranked": outrank,  # first, as long as every slot is taken
        "evicted": evict,
        "job": set_deadline("job"),
        "rolled": roll,
        "forced": delete("--grace-period=0", "--force"),
        "grace-1": delete("--grace-period=1"),
        "grace-30": delete("--grace-period=30"),
        "grace-3600": delete("--grace-period=3600"),
        "own-prestop": delete(),
        "sidecar": delete(),
        "shell": delete(),
        "drained": drain,
    }
    with harness.share(share, per_gpu=NEIGHBOURS + len(ends), memory={"default": "2Gi"}, per_node=1), \
            harness.namespace() as tenant:  # fmt: skip
        harness.kubectl.apply(LOWEST)
        drained = victim(tenant, share, "drained")
        drained["metadata"]["labels"] = {"drained": "drained"}
        job = with_spec(victim(tenant, share, "job"), restartPolicy="Never")
        rolled = with_spec(victim(tenant, share, "rolled"), restartPolicy="Always")
        hook = {"preStop": {"exec": {"command": ["sleep", "1"]}}}
        victims = [
            *(victim(tenant, share, name) for name in ("evicted", "forced", "grace-1", "grace-30", "grace-3600")),
            controlled("Job", "batch/v1", job, backoffLimit=0),
            controlled("Deployment", "apps/v1", rolled, selector={"matchLabels": {"app": "rolled"}},
                       strategy={"type": "Recreate"}),
            with_container(victim(tenant, share, "own-prestop"), lifecycle=hook),
            as_sidecar(victim(tenant, share, "sidecar")),
            tenant.pod("shell", share, command=PLAIN_SHELL, grace=3),
            drained,
            victim(tenant, share, "outranked", priority="lowest"),
        ]  # fmt: skip
        everybody_else_goes_on(tenant, share, victims, ends)
        assert "is being deleted with a grace period of 3600 s" in terminated(tenant, "grace-3600")[0]
        forced = terminated(tenant, "forced")[0]  # whether the watch shows its deletion before it is gone is a race
        assert "is gone from the API while it ran" in forced or "with a grace period of 0 s" in forced


def test_what_the_kubelet_ends_by_itself_hurts_no_neighbour(harness: Harness) -> None:
    """A failed liveness probe, a pod's own deadline, an eviction for storage, a preemption: told by events alone."""
    share = "kubelet-ends"
    full = [
        "sh",
        "-c",
        f"(sleep 12; head -c 20M /dev/zero > /cache/full) & exec gpushare-workload run {' '.join(VICTIM)}",
    ]
    ends: dict[str, Cause] = {
        "unalive": lambda *_: None,
        "deadline": set_deadline("pod"),
        "stored": lambda *_: None,
        "preempted": make_room,
    }
    with harness.share(share, per_node=1), harness.namespace() as tenant:
        probe = {"exec": {"command": ["false"]}, "initialDelaySeconds": 15, "periodSeconds": 1, "failureThreshold": 1}
        stored = with_container(
            tenant.pod("stored", share, command=full, grace=3), volumeMounts=[{"name": "cache", "mountPath": "/cache"}]
        )
        stored["spec"]["volumes"] = [{"name": "cache", "emptyDir": {"sizeLimit": "10M"}}]
        victims = [
            with_container(victim(tenant, share, "unalive", restart="OnFailure"), livenessProbe=probe),
            victim(tenant, share, "deadline"),
            stored,
            requesting(victim(tenant, share, "preempted"), cpu="300m"),
        ]
        everybody_else_goes_on(tenant, share, victims, ends)
        assert "failed liveness probe" in terminated(tenant, "unalive")[0]
        assert "has been active for longer than its activeDeadlineSeconds" in terminated(tenant, "deadline")[0]
        assert "is evicted by the kubelet" in terminated(tenant, "stored")[0]
        assert "is preempted by the kubelet for a critical pod" in terminated(tenant, "preempted")[0]


@contextmanager
def restarted_kubelet(harness: Harness, **settings: Any) -> Iterator[None]:
    """Restarts the kubelet with other settings, which are taken back afterwards by another restart."""
    file = harness.layout.conf / "kubelet.yaml"
    before = file.read_text()
    file.write_text(json.dumps(json.loads(before) | settings))
    processes.replace(harness.layout, "kubelet", signal.SIGTERM)
    try:
        yield
    finally:
        file.write_text(before)
        processes.replace(harness.layout, "kubelet", signal.SIGTERM)


SHORT_OF_MEMORY = {"evictionSoft": {"memory.available": "99%"}, "evictionSoftGracePeriod": {"memory.available": "1s"},
                   "evictionMaxPodGracePeriod": 30, "evictionPressureTransitionPeriod": "1s"}  # fmt: skip
"""It finds that memory is short on its node, whatever is free, and leaves pods the grace of a soft eviction."""
SHUTS_DOWN = {"shutdownGracePeriod": "30s", "shutdownGracePeriodCriticalPods": "10s"}


def test_what_a_restarted_kubelet_ends_hurts_no_neighbour(harness: Harness) -> None:
    """A pod that it does not take back, a soft eviction, a node shutdown. The neighbours are critical pods: none of it
    is for them, or not yet. The victims' containers last for all of their grace, and so does what ends them."""
    share = "restart-ends"
    here = "test.local/here"
    with harness.share(share, per_node=1) as gpu, harness.namespace() as tenant, \
            logind(harness.in_node("/run/dbus/system_bus_socket")) as node:  # fmt: skip
        harness.kubectl.apply(LOWEST)
        harness.kubectl("label", "node", NODE, f"{here}=")
        names = tenant.neighbours(share, NEIGHBOURS, priority="system-cluster-critical")
        victims = {
            name: tenant.pod(name, share, command=LASTING_SHELL, grace=20, priority=priority)
            for name, priority in (("rejected", ""), ("evicted", "lowest"), ("shut", ""))
        }
        with_spec(victims["rejected"], nodeSelector={here: ""})
        # Requests of memory: a kubelet that is short of it takes no pod back that has none.
        tenant.start(*(requesting(pod, memory="1Mi") for pod in victims.values()))
        for name in victims:
            wait_until(f"{name} in its kernel", lambda name=name: started(tenant, name), 60)
        before = {name: tenant.checks(name) for name in names}
        harness.kubectl("label", "node", NODE, f"{here}-")
        told = {}
        with restarted_kubelet(harness, **SHORT_OF_MEMORY, **SHUTS_DOWN):
            for name in victims:
                if name == "shut":
                    node.announce_shutdown()
                told[name] = wait_until(
                    f"{name} ended in order",
                    lambda name=name: terminated(tenant, name),
                    120,
                    lambda: all_events(tenant),
                )[0]
        assert "is rejected by its kubelet after a restart (" in told["rejected"]
        assert "is evicted by the kubelet (The node was low on resource: memory" in told["evicted"]
        assert "which the kubelet ends (Stopping container app)" in told["shut"]
        gpu.wait_capacity(8, 60)
        for name in names:
            tenant.wait_checks(name, above=before[name])
            assert not tenant.events_of(name, "gpu-error"), tenant.explain(name)
