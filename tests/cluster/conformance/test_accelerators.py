"""What the Kubernetes AI conformance programme asks of accelerators: access, metrics: conformance.md."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from localcluster.kubectl import Object
from tests.cluster import claims
from tests.cluster.claims import SIZES
from tests.cluster.harness import Harness, Tenant, wait_until
from tests.cluster.tools.test_metrics import Scraped

PROBE = """
import json, os
from gpushare.simulation import paths
from gpushare.simulation.client import CudaError, SimulatedContext
seen = {
    "nodes": len(paths.device_nodes(paths.directory())),
    "driver": os.path.exists(paths.driver_socket(paths.directory())),
    "pipe": os.path.exists("/run/gpushare/mps/control"),
    "variables": sorted(name for name in os.environ if name.startswith("CUDA_")),
}
try:
    context = SimulatedContext.create()
    seen["uuid"] = context.uuid
    context.close()
except CudaError as error:
    seen["error"] = error.code
print(json.dumps({"event": "probe", **seen}), flush=True)
"""
"""What a program finds of accelerators, and whether it gets onto one."""
pytestmark = pytest.mark.long
COMMAND = ["python", "-c", PROBE]
NO_DEVICE = 100
NOTHING = {"nodes": 0, "driver": False, "pipe": False, "variables": [], "error": NO_DEVICE}


@pytest.fixture(scope="module", params=["DevicePlugin", "ResourceClaim"])
def tenant(harness: Harness, request: pytest.FixtureRequest) -> Iterator[Tenant]:
    spec: dict[str, Any] = {"delivery": request.param}
    if request.param == "ResourceClaim":
        spec["sizes"] = SIZES
    with harness.share("probed", per_node=1, **spec), harness.namespace("probed") as tenant:
        if request.param == "ResourceClaim":
            claims.wait_template(tenant, "small", "probed")
        yield tenant


def asking(tenant: Tenant, name: str, command: list[str] = COMMAND) -> Object:
    """A pod that asks by the delivery of the share that there is."""
    if tenant.kubectl.items("resourceclaimtemplates"):
        return claims.sized(tenant, name, "probed", "small", command=command)
    return tenant.pod(name, "probed", command=command)


def without_part(container: Object, name: str) -> Object:
    return {key: value for key, value in container.items() if key != "resources"} | {"name": name}


def probed(tenant: Tenant, pod: str, container: str = "app") -> Object:
    lines = wait_until("the probe", lambda: tenant.kubectl("logs", pod, f"--container={container}"), 60)
    seen: Object = json.loads(lines.splitlines()[-1])
    del seen["event"]
    return seen


def test_only_a_container_that_asks_for_a_part_finds_a_gpu_and_uses_it(harness: Harness, tenant: Tenant) -> None:
    """A pod with a part, a pod without one on the same node, and a container beside one that has a part."""
    authorized = asking(tenant, "authorized")
    plain = tenant.pod("plain", "probed", command=COMMAND)
    plain["spec"]["containers"] = [without_part(plain["spec"]["containers"][0], "app")]
    pair = asking(tenant, "pair")
    [first] = pair["spec"]["containers"]
    pair["spec"]["containers"] = [first, without_part(first, "beside")]
    tenant.start(authorized, plain, pair)
    (gpu,) = {
        assignment["uuid"]
        for assignment in harness.gpu_node()["spec"]["assignments"]
        if assignment["share"] == "probed"
    }
    for pod in ("authorized", "pair"):
        seen = probed(tenant, pod)
        assert (seen["nodes"], seen["uuid"], seen["driver"]) == (1, gpu, False)
    assert probed(tenant, "plain") == NOTHING
    assert probed(tenant, "pair", "beside") == NOTHING
    tenant.delete_pods()


def test_a_client_that_names_another_clients_gpu_does_not_reach_it(harness: Harness, tenant: Tenant) -> None:
    with harness.share("theirs", per_node=1), harness.namespace("theirs") as owner:
        (other,) = {
            assignment["uuid"]
            for assignment in harness.gpu_node()["spec"]["assignments"]
            if assignment["share"] == "theirs"
        }
        shell = ["sh", "-c", f"CUDA_VISIBLE_DEVICES={other} NVIDIA_VISIBLE_DEVICES=all python -c '{PROBE}'"]
        tenant.start(asking(tenant, "reaches", shell))
        owner.start(owner.pod("owner", "theirs", command=COMMAND))
        seen = probed(tenant, "reaches")
        assert (seen["nodes"], seen.get("uuid"), seen["error"]) == (1, None, NO_DEVICE)
        assert probed(owner, "owner")["uuid"] == other
        tenant.delete_pods("reaches")


def test_utilization_and_memory_of_a_gpu_follow_what_its_clients_do(harness: Harness) -> None:
    with harness.share("metered", per_node=1), harness.namespace("metered") as tenant:
        (gpu,) = {
            assignment["uuid"]
            for assignment in harness.gpu_node()["spec"]["assignments"]
            if assignment["share"] == "metered"
        }

        def busy() -> float:
            return Scraped(harness, "agent").value("gpushare_gpu_utilization_ratio", uuid=gpu)

        def memory() -> float:
            usages = Scraped(harness, "agent").values("gpushare_container_memory_used_bytes", share="metered")
            return sum(usages)

        wait_until("idle", lambda: busy() == 0, 30, busy)
        assert memory() == 0
        assert Scraped(harness, "agent").value("gpushare_gpu_memory_bytes", uuid=gpu) > 1 << 36
        names = ["busy", *tenant.neighbours("metered", 2)]
        tenant.start(tenant.pod("busy", "metered", "depart", "--role", "victim", "--kernel-ms", "200"))
        wait_until("busy", lambda: busy() > 0, 30, busy)
        wait_until("memory of both", memory, 30)
        tenant.delete_pods(*names)
        wait_until("idle again", lambda: busy() == 0, 30, busy)
        wait_until("no memory", lambda: memory() == 0, 30, memory)
