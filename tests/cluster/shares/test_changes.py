"""Changes that need new MPS daemons wait for clients, roll when idle, stop at what fails; the others act at once."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from localcluster.kubectl import Object
from tests.cluster.harness import NODE, Harness, Share, Tenant, condition, wait_until

OPERATOR = "deployment/gpushare-operator"
CPU_LIMIT = "GPUSHARE_MPS_CPU_LIMIT"
POLICY = "gpushare-operator-daemonsets"


@pytest.fixture(scope="module", autouse=True)
def _as_installed(harness: Harness) -> Iterator[None]:
    yield
    set_operator(harness, f"{CPU_LIMIT}-")  # the chart's default is none


def set_operator(harness: Harness, *variables: str) -> None:
    """What the chart does with other values, for the operator alone. Waits until it runs with them."""
    harness.system("set", "env", OPERATOR, *variables)
    harness.system("rollout", "status", OPERATOR, "--timeout=60s", seconds=70)


def mps_pod(harness: Harness, share: Share) -> Object | None:
    pods = harness.system.items("pods", f"--selector=gpushare.dev/share={share.name}")
    return next((pod for pod in pods if "deletionTimestamp" not in pod["metadata"]), None)


def uid(harness: Harness, share: Share) -> str:
    pod = mps_pod(harness, share)
    return str(pod["metadata"]["uid"]) if pod else ""


def change_cpu_limit(harness: Harness, share: Share) -> str:
    """Sets another CPU limit for MPS pods than the share's has, whatever an earlier test set. Returns it."""
    old = (mps_pod(harness, share) or {})["spec"]["containers"][0]["resources"]["limits"].get("cpu")
    new = "3" if old == "2" else "2"
    set_operator(harness, f"{CPU_LIMIT}={new}")
    return new


def wait_condition(share: Share, reason: str, seconds: float = 60) -> dict[str, Any]:
    def shown() -> dict[str, Any]:
        current = share.condition("DaemonsCurrent")
        return current if current.get("reason") == reason else {}

    return wait_until(f"DaemonsCurrent {reason}", shown, seconds, lambda: share.condition("DaemonsCurrent"))


def restarts(tenant: Tenant) -> set[int]:
    return {status["restartCount"] for pod in tenant.pods() for status in pod["status"].get("containerStatuses", [])}


def test_a_change_of_settings_waits_for_clients_and_rolls_after_them(harness: Harness) -> None:
    with harness.share("change", per_node=1) as share, harness.namespace() as tenant:
        names = tenant.neighbours("change", 2)
        before = uid(harness, share)
        cpu = change_cpu_limit(harness, share)
        told = wait_condition(share, "WaitingForClients")
        assert "since the share has no maxWait" in told["message"]
        assert "for 2 pods to end (GpuNode.status.holders names them)" in told["message"]
        assert tenant.name not in told["message"], "other tenants may read the share"
        holders = [pod for holder in harness.gpu_node()["status"]["holders"] for pod in holder["pods"]]
        assert sorted(holders) == [f"{tenant.name}/{name}" for name in names]
        assert share.condition()["status"] == "True", "it serves as before"
        waiting = wait_until("the node says so", lambda: node_condition(harness), 20)
        assert f"pods {tenant.name}/{names[0]}, {tenant.name}/{names[1]}" in waiting["message"]
        tenant.start(tenant.pod("later", "change", "limits"))
        assert tenant.wait_event("later", "limits")["problems"] == [], "a busy GPU goes on taking pods"
        checks = {name: tenant.checks(name) for name in names}
        for name in names:
            wait_until(f"{name} goes on", lambda name=name: tenant.checks(name) > checks[name])
        assert (uid(harness, share), restarts(tenant)) == (before, {0})

        tenant.delete_pods()
        wait_until("a new MPS pod", lambda: uid(harness, share) not in ("", before), 60, lambda: share.get())
        wait_condition(share, "DaemonsCurrent")
        share.wait_ready()
        share.wait_capacity(8)
        container = (mps_pod(harness, share) or {})["spec"]["containers"][0]
        assert container["resources"]["limits"]["cpu"] == cpu
        tenant.start(tenant.pod("new", "change", "limits"))
        assert tenant.wait_event("new", "limits")["problems"] == []
        assert share.events("DaemonReplaced")


def node_condition(harness: Harness) -> dict[str, Any]:
    waiting = condition(harness.gpu_node(), "WaitingForClients")
    return waiting if waiting.get("status") == "True" and "pods " in waiting["message"] else {}


def test_clients_are_ended_in_order_after_maxwait_and_start_again(harness: Harness) -> None:
    with harness.share("hurried", per_node=1, maxWait="8s") as share, harness.namespace() as tenant:
        names = tenant.neighbours("hurried", 2, restart="Always")
        before = uid(harness, share)
        change_cpu_limit(harness, share)
        assert "at most, for 2 pods to end" in wait_condition(share, "WaitingForClients")["message"]
        wait_until("a new MPS pod", lambda: uid(harness, share) not in ("", before), 60, lambda: share.get())
        wait_condition(share, "DaemonsCurrent")
        assert share.events("MaxWaitExpired")
        for name in names:
            told = {event["reason"] for event in tenant.kubernetes_events(name)}
            assert {"MaxWaitExpired", "ClientTerminated"} <= told
            wait_until(f"{name} runs again", lambda name=name: started_again(tenant, name), 60,
                       lambda name=name: tenant.explain(name))  # fmt: skip
            errors = [line for line in previous(tenant, name) if line["event"] == "gpu-error"]
            assert [line["code"] for line in errors] == [810], "ended through the daemon, not by its death"


def started_again(tenant: Tenant, name: str) -> bool:
    statuses = tenant.kubectl.get("pod", name)["status"]["containerStatuses"]
    return statuses[0]["restartCount"] >= 1 and bool(tenant.events_of(name, "progress"))


def previous(tenant: Tenant, name: str) -> list[dict[str, Any]]:
    lines = tenant.kubectl("logs", name, "--previous").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


@contextmanager
def image_of_mps_pods(harness: Harness, image: str) -> Iterator[None]:
    """What the chart does with another image, for MPS pods alone: the operator's setting, and the policy's pin."""
    good = harness.stack.operator_image
    name_image(harness, good, image)
    try:
        yield
    finally:
        name_image(harness, image, good)


def name_image(harness: Harness, old: str, new: str) -> None:
    pin(harness, old, new)
    set_operator(harness, f"GPUSHARE_IMAGE={new}")


def pin(harness: Harness, old: str, new: str) -> None:
    policy = harness.kubectl("get", "validatingadmissionpolicy", POLICY, "-o", "json")
    harness.kubectl("replace", "-f", "-", stdin=policy.replace(old, new))


def test_an_unavailable_image_stops_the_rollout_and_the_last_resumes_it(harness: Harness) -> None:
    failing, busy = harness.share("failing", per_node=1), harness.share("busy", per_node=1)
    with failing as share, busy as neighbour, harness.namespace() as tenant:
        (name,) = tenant.neighbours("busy", 1)
        untouched = uid(harness, neighbour)
        with image_of_mps_pods(harness, "localhost/gpushare-operator:none"):
            told = wait_condition(share, "RolloutStopped", 90)
            assert "ImagePullBackOff" in told["message"]
            assert f"node {NODE}" in told["message"]
            assert share.events("RolloutStopped")
            wait_condition(neighbour, "WaitingForClients")
            assert uid(harness, neighbour) == untouched
        wait_condition(share, "DaemonsCurrent")
        share.wait_ready()
        wait_condition(neighbour, "DaemonsCurrent")
        assert uid(harness, neighbour) == untouched, "back at the image that it has, nothing is to be replaced"
        checks = tenant.checks(name)
        wait_until("its client goes on", lambda: tenant.checks(name) > checks)


def test_limits_change_on_the_live_daemon_for_new_clients(harness: Harness) -> None:
    with harness.share("live", per_node=1) as share, harness.namespace() as tenant:
        (name,) = tenant.neighbours("live", 1)
        before, since = uid(harness, share), share.condition()["lastTransitionTime"]
        clients = {"perGpu": 8, "threads": {"default": 10, "max": 20}, "memory": {"default": "4Gi"}}
        share.apply(per_node=1, clients=clients)
        new = "20% of the SMs and 4096Mi per process for new clients"
        wait_until("the limits are in force", lambda: share.condition("LimitsEnforced")["message"].startswith(new), 60,
                   lambda: share.get()["status"])  # fmt: skip
        share.wait_ready()
        assert share.condition()["lastTransitionTime"] == since, "it was Ready all the time"
        own, told = share.get()["metadata"]["uid"], harness.kubectl.items("events", "--namespace=default")
        assert not [event for event in told if event["type"] == "Warning" and event["involvedObject"].get("uid") == own]
        daemon = next(item for item in harness.gpu_node()["status"]["daemons"] if item["share"] == "live")
        assert daemon["currentLimits"] == {"threads": 20, "memoryMib": 4096}
        tenant.start(tenant.pod("new", "live", "limits"))
        seen = tenant.wait_event("new", "limits")
        assert (seen["problems"], seen["granted"]["threads"]) == ([], 10)
        checks = tenant.checks(name)
        wait_until("the old client goes on", lambda: tenant.checks(name) > checks)
        assert (uid(harness, share), share.condition("DaemonsCurrent")["status"]) == (before, "True")


def test_clients_go_on_though_their_shares_label_and_daemonset_go(harness: Harness) -> None:
    """Both are made again. The MPS pod, which Kubernetes deletes with them, waits for its clients."""
    with harness.share("bereft", per_node=1) as share, harness.namespace() as tenant:
        (name,) = tenant.neighbours("bereft", 1)
        before, label = uid(harness, share), "share.gpushare.dev/bereft"
        harness.kubectl("label", "node", NODE, f"{label}-")
        wait_until("the label again", lambda: label in harness.kubectl.get("node", NODE)["metadata"]["labels"], 30)
        harness.system("delete", "daemonset", "--selector=gpushare.dev/share=bereft", "--wait=false")
        wait_until("its end is asked for", lambda: uid(harness, share) != before, 30)
        checks = tenant.checks(name)
        wait_until("its client goes on", lambda: tenant.checks(name) > checks + 2)
        assert restarts(tenant) == {0}
        tenant.delete_pods(name)
        wait_until("a new MPS pod", lambda: uid(harness, share) not in ("", before), 60, lambda: share.get())
        share.wait_ready()
        share.wait_capacity(8)
        tenant.start_replaced(tenant.pod("new", "bereft", "limits"))
        assert tenant.wait_event("new", "limits")["problems"] == []
