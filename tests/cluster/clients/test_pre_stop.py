"""The preStop program of containers with a probe: every end of theirs is announced, however often they end."""

from localcluster.kubectl import Object
from tests.cluster.harness import Harness, Tenant, wait_until

GRACE = 3
ENDLESS_MS = "600000"
"""So that a victim is never between two kernels."""
ENDS = 5
"""Of each victim."""
OTHERS = 5
"""Containers beside the victim. Each start takes three of the kubelet's 25 Normal events of a pod, so that seven are
left for the victim, and each life of it takes four: two ends are announced.
"""
VICTIMS = ("failing-0", "failing-1")
FAILS = {"tcpSocket": {"port": 1}, "periodSeconds": 1, "failureThreshold": 1}
WAIT = ["python3", "-c", "import signal; signal.sigwait([signal.SIGTERM])"]


def failing(tenant: Tenant, share: str, name: str) -> Object:
    """A pod whose container is ended again and again three seconds after its start, in the midst of its kernel."""
    pod = tenant.pod(
        name, share, "depart", "--role", "victim", "--kernel-ms", ENDLESS_MS, grace=GRACE, restart="Always"
    )
    (app,) = pod["spec"]["containers"]
    other = {key: app[key] for key in ("image", "imagePullPolicy", "securityContext")} | {"command": WAIT}
    app["livenessProbe"] = FAILS | {"initialDelaySeconds": 3}
    pod["spec"]["containers"] += [other | {"name": f"other-{number}"} for number in range(OTHERS)]
    return pod


def hook(tenant: Tenant, name: str) -> Object:
    return dict(tenant.kubectl.get("pod", name)["spec"]["containers"][0]["lifecycle"]["preStop"])


def announced(tenant: Tenant, name: str) -> int:
    events = tenant.kubernetes_events(name)
    return sum(event.get("count") or 1 for event in events if event["reason"] == "Killing")


def restarts(tenant: Tenant, name: str) -> int:
    statuses = tenant.kubectl.get("pod", name)["status"].get("containerStatuses", [])
    return sum(status["restartCount"] for status in statuses)


def test_a_probe_that_ends_a_client_again_and_again_hurts_no_neighbour(harness: Harness) -> None:
    with harness.share("probed", per_node=1) as share, harness.namespace() as tenant:
        neighbours = tenant.neighbours("probed", 3)
        wait_until("the node mounts the program", lambda: share.get()["status"].get("preStop"), 40)
        assert hook(tenant, neighbours[0]) == {"sleep": {"seconds": 2}}
        tenant.start(*(failing(tenant, "probed", name) for name in VICTIMS))
        for name in VICTIMS:
            assert hook(tenant, name) == {"exec": {"command": ["/run/gpushare/pre-stop", "1"]}}

        def ended() -> bool:
            return all(restarts(tenant, name) >= ENDS for name in VICTIMS)

        wait_until("their clients ended often", ended, 180, lambda: tenant.explain(VICTIMS[0]))
        for name in VICTIMS:
            assert announced(tenant, name) < ENDS / 2, "the kubelet announced most of them: this shows little"
        tenant.go_on(neighbours)
