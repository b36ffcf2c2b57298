"""Limits change for new clients through the live server; nobody is restarted."""

from localcluster.kubectl import Object
from tests.cluster.harness import Harness, Tenant


def identities(tenant: Tenant) -> dict[str, tuple[str, int]]:
    return {pod["metadata"]["name"]: (pod["metadata"]["uid"], restarts(pod)) for pod in tenant.pods()}


def restarts(pod: Object) -> int:
    return sum(status["restartCount"] for status in pod["status"].get("containerStatuses", []))


def mps_pods(harness: Harness) -> dict[str, int]:
    pods = harness.pods_of("mps")
    return {pod["metadata"]["uid"]: restarts(pod) for pod in pods}


def test_raised_and_lowered_limits_reach_new_clients_and_restart_nobody(harness: Harness) -> None:
    with harness.share("change", per_node=1) as share, harness.namespace() as tenant:
        old = tenant.neighbours("change", 2)
        before, daemons = identities(tenant), mps_pods(harness)
        for number, (threads, sms, memory) in enumerate([(50, 66, "12Gi"), (10, 12, "4Gi")]):
            share.apply(per_node=1, threads={"default": threads, "max": threads}, memory={"default": memory})
            share.wait_ready()
            name = f"new-{number}"
            tenant.start(tenant.pod(name, "change", "depart"))
            seen = tenant.wait_event(name, "limits")
            assert seen["problems"] == []
            assert seen["observed"]["sms"] == sms
            assert seen["granted"]["memory"] == int(memory.removesuffix("Gi")) << 30
        now = identities(tenant)
        assert {name: now[name] for name in old} == before
        assert all(count == 0 for _, count in now.values())
        assert mps_pods(harness) == daemons
        assert len(tenant.running()) == 4
