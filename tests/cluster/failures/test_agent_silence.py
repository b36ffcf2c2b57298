"""An agent that is gone shows within a minute, everywhere, and comes back by itself."""

import subprocess
import time
from typing import Any

from tests.cluster.harness import NODE, Harness, Share, condition, wait_until
from tests.cluster.node import without_agent
from tests.cluster.tools.test_kubectl import plugin
from tests.cluster.tools.test_metrics import Scraped

WITHIN_SECONDS = 60


def test_an_agent_renews_a_lease_of_its_nodes_name_owned_by_its_gpunode(harness: Harness) -> None:
    wait_until("the Lease", lambda: harness.system.find("lease", NODE))
    lease = harness.system.get("lease", NODE)
    first = lease["spec"]["renewTime"]
    (owner,) = lease["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("GpuNode", harness.gpu_node()["metadata"]["uid"])
    assert lease["spec"]["leaseDurationSeconds"] == 40
    wait_until("a renewal", lambda: harness.system.get("lease", NODE)["spec"]["renewTime"] != first, 20)
    wait_until("AgentReporting", lambda: reporting(harness).get("status") == "True", 30)


def test_a_node_without_agent_is_unknown_within_a_minute_and_recovers(harness: Harness) -> None:
    with harness.share("watched") as share, harness.namespace() as tenant:
        (pod,) = tenant.neighbours("watched", 1)
        wait_until("AgentReporting", lambda: reporting(harness).get("status") == "True", 30)
        wait_until("all well", lambda: share.condition("DeparturesGuarded").get("status") == "True")
        with without_agent(harness):
            since = time.monotonic()
            wait_until("the GpuNode says so", lambda: reporting(harness).get("status") == "Unknown", 100)
            wait_until("the share says so", lambda: share.condition().get("reason") == "AgentSilent", 10)
            took = time.monotonic() - since
            print(f"the share said so {took:.0f} s after the agent was gone")
            assert took < WITHIN_SECONDS
            says_so_everywhere(harness, share)
            assert f"no gpushare agent reports on node {NODE}" in warnings(harness, "pod", pod, tenant.name)
            assert "released only once their agents are back" in warnings(harness, "gpushare", share.name)
            assert tenant.kubectl.get("pod", pod)["status"]["phase"] == "Running", "its work goes on"
        wait_until("all well again", lambda: is_well(harness, share), 90, lambda: harness.gpu_node()["status"])
        wait_until("the event", lambda: harness.cluster_events("GpuNode", NODE, "AgentReporting"), 10)
        assert warnings(harness, "pod", pod, tenant.name) == ""
        assert warnings(harness, "gpushare", share.name) == ""
        assert plugin(harness, "check", NODE).returncode == 0
        assert Scraped(harness, "operator").value("gpushare_agent_reporting", node=NODE) == 1


def says_so_everywhere(harness: Harness, share: Share) -> None:
    node = harness.gpu_node()
    assert {condition["status"] for condition in node["status"]["conditions"]} == {"Unknown"}, (
        "nobody vouches for any of them"
    )
    lease = harness.system.get("lease", NODE)
    assert lease["spec"]["renewTime"] in reporting(harness)["message"]
    guarded = share.condition("DeparturesGuarded")
    assert (guarded["status"], guarded["reason"]) == ("False", "AgentSilent")
    assert share.condition()["status"] == "Unknown"
    for kind in ("DaemonsReady", "LimitsEnforced"):
        assert share.condition(kind)["status"] == "Unknown"
    wait_until("the node's event", lambda: harness.cluster_events("GpuNode", NODE, "AgentSilent"), 10)
    wait_until("the share's event", lambda: share.events("AgentSilent"), 10)
    problems = plugin(harness, "status")
    assert "AgentSilent" in problems.stdout
    checked = plugin(harness, "check", NODE)
    assert checked.returncode == 1
    assert "AgentSilent" in checked.stdout
    assert Scraped(harness, "operator").value("gpushare_agent_reporting", node=NODE) == 0


def is_well(harness: Harness, share: Share) -> bool:
    conditions = {condition["type"]: condition["status"] for condition in harness.gpu_node()["status"]["conditions"]}
    node = conditions == {
        "AgentReporting": "True",
        "NvmlReachable": "True",
        "KubeletReachable": "True",
        "DriverFilesReachable": "True",
        "WithinGrants": "True",
        "WaitingForClients": "False",
    }
    return node and all(condition["status"] == "True" for condition in share.get()["status"]["conditions"])


def reporting(harness: Harness) -> dict[str, Any]:
    return condition(harness.gpu_node(), "AgentReporting")


def warnings(harness: Harness, kind: str, name: str, namespace: str | None = None) -> str:
    """What a user is warned of who deletes the object; a dry run deletes nothing."""
    scope = [f"--namespace={namespace}"] if namespace else []
    command = ["kubectl", "delete", kind, name, *scope, "--dry-run=server", "--wait=false"]
    environment = dict(harness.stack.environment)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return done.stderr
