"""A node of eight GPUs that gives parts of some and others whole, and how a GPU goes from one to the other."""

from collections import Counter
from collections.abc import Iterator

import pytest

from localcluster.kubectl import Object
from localcluster.stack import install
from tests.cluster.delivery.other_plugin import other_plugin
from tests.cluster.harness import Harness, Tenant, condition, gpu_share, wait_until

NVIDIA = "nvidia.com/gpu"
PROGRAM = """
import itertools, json, time
from gpushare.simulation import paths
from gpushare.simulation.client import SimulatedContext
nodes = paths.device_nodes(paths.directory())
contexts = [SimulatedContext.create({"CUDA_VISIBLE_DEVICES": str(index)}) for index in range(len(nodes))]
uuids, mps = sorted(context.uuid for context in contexts), any(context.under_mps for context in contexts)
print(json.dumps({"event": "seen", "uuids": uuids, "mps": mps}), flush=True)
for checks in itertools.count(1):
    for context in contexts:
        context.launch(5)
        context.synchronize()
    print(json.dumps({"event": "progress", "checks": checks}), flush=True)
    time.sleep(0.3)
"""


@pytest.fixture(scope="module")
def eight(harness: Harness) -> Iterator[Harness]:
    """The node has eight GPUs; afterwards as many as before, and an agent that never saw more."""
    install(harness.stack, "--set=simulation.gpus=8")
    wait_until("eight GPUs", lambda: len(harness.gpu_node()["status"].get("gpus", [])) == 8, 90)
    yield harness
    install(harness.stack)
    harness.restart_pods("agent")
    harness.wait_component("agent")
    wait_until("two GPUs", lambda: len(harness.gpu_node()["status"].get("gpus", [])) == 2, 60)


def whole_share(harness: Harness, name: str, resource: str | None = NVIDIA, **spec: object) -> None:
    given = {"resourceName": resource} if resource else {}
    harness.kubectl.apply(gpu_share(name, {"wholeGpus": given, **spec}))


def whole_pod(tenant: Tenant, name: str, count: int, resource: str = NVIDIA) -> Object:
    pod = tenant.pod(name, "unused", command=["python", "-c", PROGRAM])
    pod["spec"]["containers"][0]["resources"] = {"limits": {resource: str(count)}}
    return pod


def shares_of(harness: Harness) -> Counter[str]:
    return Counter(assignment["share"] for assignment in harness.gpu_node()["spec"].get("assignments") or [])


def gpus_of(harness: Harness, share: str) -> set[str]:
    return {
        assignment["uuid"] for assignment in harness.gpu_node()["spec"]["assignments"] if assignment["share"] == share
    }


def verdict(harness: Harness, share: str, kind: str = "Ready") -> dict[str, str]:
    return condition(harness.kubectl.get("gpushare", share), kind)


def reasons(harness: Harness, share: str) -> dict[str, str]:
    listed = harness.kubectl.get("gpushare", share).get("status", {}).get("unavailable", [])
    return {gpu["reason"]: gpu["message"] for gpu in listed}


def offered(harness: Harness, resource: str, count: int) -> None:
    wait_until(f"{count} of {resource}", lambda: harness.allocatable(resource) == count, 60,
               lambda: harness.allocatable(resource))  # fmt: skip


def mps_pods(harness: Harness, share: str) -> list[Object]:
    return harness.system.items("pods", f"--selector=gpushare.dev/share={share}")


def test_two_for_notebooks_four_for_services_and_the_rest_whole(eight: Harness) -> None:
    """All three stand with clients on shared GPUs, through a restart of the agent, and through both moves of a GPU."""
    with (
        eight.share("notebooks", per_node=2, per_gpu=4) as notebooks,
        eight.share("services", per_node=4, per_gpu=2) as services,
        eight.namespace() as tenant,
    ):
        whole_share(eight, "training")
        try:
            wait_until("Ready", lambda: verdict(eight, "training").get("status") == "True", 60,
                       lambda: verdict(eight, "training"))  # fmt: skip
            assert shares_of(eight) == {"notebooks": 2, "services": 4, "training": 2}
            offered(eight, NVIDIA, 2)
            assert mps_pods(eight, "training") == []
            beside = [*tenant.neighbours("notebooks", 2, "notebook"), *tenant.neighbours("services", 2, "service")]

            tenant.start(whole_pod(tenant, "trains", 2))
            seen = tenant.wait_event("trains", "seen")
            assert set(seen["uuids"]) == gpus_of(eight, "training")
            assert not seen["mps"]
            tenant.go_on([*beside, "trains"])
            wait_until("holders", lambda: eight.held_by_gpu("training") == dict.fromkeys(seen["uuids"], 1), 30)
            modes = {gpu["uuid"]: gpu["computeMode"] for gpu in eight.gpu_node()["status"]["gpus"]}
            assert {modes[uuid] for uuid in seen["uuids"]} == {"Default"}
            tenant.start(whole_pod(tenant, "waits", 1))
            said = wait_until("no GPU is left", lambda: tenant.unscheduled_message("waits"))
            assert f"Insufficient {NVIDIA}" in said
            tenant.delete_pods("waits")

            eight.restart_pods("agent")
            eight.wait_component("agent")
            offered(eight, NVIDIA, 2)
            assert eight.held_by_gpu("training") == dict.fromkeys(seen["uuids"], 1)
            tenant.go_on([*beside, "trains"])

            # From shared to whole: an idle GPU of the services, while the clients of the others go on.
            services.apply(per_node=3, per_gpu=2)
            offered(eight, NVIDIA, 3)
            tenant.start(whole_pod(tenant, "third", 1))
            (third,) = tenant.wait_event("third", "seen")["uuids"]
            assert third not in seen["uuids"]

            # And back, once its container has ended, while the training goes on.
            tenant.delete_pods("third")
            wait_until("it is free", lambda: third not in eight.held_by_gpu("training"), 60)
            whole_share(eight, "training", gpus={"perNode": 2})
            services.apply(per_node=4, per_gpu=2)
            services.wait_ready(gpus=4)
            assert third in gpus_of(eight, "services")
            tenant.go_on([*beside, "trains"])
            assert tenant.kubectl.get("pod", "trains")["status"]["containerStatuses"][0]["restartCount"] == 0
            notebooks.wait_ready(gpus=2)
            assert eight.gpu_node()["status"].get("findings", []) == []
            tenant.delete_pods("trains")
        finally:
            eight.kubectl.delete("gpushare", "training", seconds=90)
        offered(eight, NVIDIA, 0)


def test_a_share_gives_whole_gpus_by_its_own_name_without_the_webhook(eight: Harness) -> None:
    whole_share(eight, "own", None, gpus={"perNode": 2})
    try:
        offered(eight, "gpushare.dev/own", 2)
        with eight.namespace() as tenant:
            tenant.start(whole_pod(tenant, "trains", 2, "gpushare.dev/own"))
            assert set(tenant.wait_event("trains", "seen")["uuids"]) == gpus_of(eight, "own")
            container = tenant.kubectl.get("pod", "trains")["spec"]["containers"][0]
            assert "env" not in container or container["env"] == []
            assert "lifecycle" not in container
    finally:
        eight.kubectl.delete("gpushare", "own", seconds=90)


def test_a_name_that_is_taken_on_the_node_is_refused_with_a_condition(eight: Harness) -> None:
    """The name is taken by another device plugin of the real kubelet, and by an older share."""
    try:
        with other_plugin(eight, "example.com/gpu"):
            whole_share(eight, "late", "example.com/gpu", gpus={"perNode": 1})
            message = wait_until("refused", lambda: reasons(eight, "late").get("ResourceNameTaken"), 30)
            assert "another device plugin offers example.com/gpu" in message
            assert verdict(eight, "late")["status"] == "False"
            whole_share(eight, "first", NVIDIA, gpus={"perNode": 1})
            offered(eight, NVIDIA, 1)
            whole_share(eight, "second", NVIDIA)
            message = wait_until("refused", lambda: reasons(eight, "second").get("ResourceNameTaken"), 30)
            assert 'GpuShare "first" offers nvidia.com/gpu' in message
            assert shares_of(eight) == {"first": 1}
        wait_until("the name is free", lambda: verdict(eight, "late").get("status") == "True", 60)
        offered(eight, "example.com/gpu", 1)
    finally:
        for name in ("late", "second", "first"):
            eight.kubectl.delete("gpushare", name, seconds=90)
