"""What users see: a share that is Ready, the GPU's true properties, and eight tenants with their limits in force."""

from typing import Any

from localcluster.kubectl import Object
from measurements.gpu.stack.suite import Findings
from measurements.gpu.stack.suites import parts
from tests.cluster.harness import Harness, Tenant, condition, wait_until

SHARE, CLIENTS, THREADS = "view", 8, 25
FIRST_USER = 20001
"""Eight clients of as many users: one MPS server has to serve them all."""
TOGETHER_SECONDS = 20
"""The time that each stays a client after its checks, so that all eight are there at once."""
START_SECONDS = 60


def measure(harness: Harness, findings: Findings) -> None:
    memory = f"{parts.slot_mib(findings.truth['memory_mib'], CLIENTS)}Mi"
    with harness.share(SHARE, per_gpu=CLIENTS, threads={"default": THREADS}, memory={"default": memory}) as share:
        share.wait_capacity(CLIENTS)
        findings.figures["kubectl"] = harness.kubectl("get", "gpushares,gpunodes").splitlines()
        findings.figures["share"] = {state["type"]: state["status"] for state in share.get()["status"]["conditions"]}
        findings.expect("the share is Ready", share.condition().get("status") == "True")
        _gpu_told(harness.gpu_node(), findings)
        with harness.namespace() as tenant:
            _clients(tenant, findings)


def _gpu_told(gpu_node: Object, findings: Findings) -> None:
    status, truth = gpu_node["status"], findings.truth
    [gpu] = status["gpus"]
    findings.figures["gpu"] = {"told": gpu | {"driverVersion": status["driverVersion"]}, "truth": truth}
    findings.figures["conditions"] = {
        state["type"]: (state["status"], state["reason"]) for state in status["conditions"]
    }
    findings.expect("the GPU's product is told", gpu["product"] == truth["product"])
    findings.expect("its SMs are told", gpu["sms"] == truth["sms"])
    most = truth.get("nvml_memory_mib", truth["memory_mib"])
    findings.expect("its memory is told", truth["memory_mib"] <= gpu["memoryMib"] <= most)
    findings.expect("its driver is told", truth["driver"] in status["driverVersion"])
    findings.expect(
        "simulated GPUs are told as such, and real ones are not", status.get("simulated", False) is findings.simulated
    )
    exclusive = gpu["computeMode"] == "ExclusiveProcess"
    told = condition(gpu_node, "GpusExclusive").get("status")
    findings.expect("whether processes can use it past MPS is told", told == str(exclusive))
    findings.expect("its compute mode was left alone", "originalComputeMode" not in gpu)


def _clients(tenant: Tenant, findings: Findings) -> None:
    names = [f"client-{number}" for number in range(CLIENTS)]
    arguments = ("limits", "--hold", str(TOGETHER_SECONDS))
    pods = [tenant.pod(name, SHARE, *arguments, user=FIRST_USER + number) for number, name in enumerate(names)]
    tenant.start(*pods)
    seen = [_client(tenant, name) for name in names]
    findings.figures["clients"] = seen
    findings.expect("eight clients of eight users hold slots at once", _hold_at_once(tenant))
    for client in seen:
        findings.expect("each is granted what the share says", client["granted"]["threads"] == THREADS)
        findings.expect("each finds every limit in force", client["problems"] == [])
        findings.expect("each is refused memory above its grant", client["observed"]["above_refused"])
        findings.expect("each sees its part of the SMs", client["observed"]["sms"] < findings.truth["sms"])
    for name in names:
        findings.expect("each ends well", tenant.wait_ended(name, START_SECONDS) == "Succeeded")


def _hold_at_once(tenant: Tenant) -> bool:
    """The agent reports slots within seconds."""
    return wait_until("all slots are held", lambda: sum(tenant.harness.held_by_gpu(SHARE).values()) == CLIENTS, 15)


def _client(tenant: Tenant, name: str) -> dict[str, Any]:
    line = tenant.wait_event(name, "limits", START_SECONDS)
    return {"user": tenant.kubectl.get("pod", name)["spec"]["securityContext"]["runAsUser"], **line}
