"""Two GPUs of one host: a daemon for each, two shares beside each other, faults that stay on their GPU, and programs
that could use both: `pin` in a slot, and a distributed training of two pods with a slot of each GPU.
"""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

from localcluster.kubectl import Object
from measurements.gpu.stack.suite import Findings
from measurements.gpu.stack.suites import parts
from tests.cluster.harness import Harness, Share, Tenant, wait_until
from tests.cluster.node import daemon_of

LEFT, RIGHT, BOTH = "left", "right", "both"
THREADS = {LEFT: 25, RIGHT: 50}
NEIGHBOURS, PER_GPU = 2, 8
TRAINED_SECONDS = 120
PORT = "29500"
RANK_PROGRAM = Path(__file__).with_name("rank_program.py").read_text()


def measure(harness: Harness, findings: Findings) -> None:
    def share(name: str) -> Any:
        return harness.share(name, per_gpu=PER_GPU, per_node=1, threads={"default": THREADS[name]})

    with (
        findings.phase("one share of two GPUs"),
        harness.share(BOTH, per_gpu=PER_GPU) as both,
        harness.namespace() as tenant,
    ):
        both.wait_capacity(2 * PER_GPU)
        _one_share(harness, tenant, findings)
    with share(LEFT) as left, share(RIGHT) as right, harness.namespace() as tenant:
        for side in (left, right):
            side.wait_capacity(PER_GPU)
        findings.figures["kubectl"] = harness.kubectl("get", "gpushares,gpunodes").splitlines()
        with findings.phase("two shares"):
            _two_shares(harness, left, right, tenant, findings)
        with findings.phase("pin"):
            findings.figures["pin"] = _pin(tenant, findings)
        with findings.phase("a fault on one GPU"):
            _fault(harness, left, right, tenant, findings)
        if not findings.simulated:
            findings.figures["ddp"] = _train(harness, findings)


def _two_shares(harness: Harness, left: Share, right: Share, tenant: Tenant, findings: Findings) -> None:
    """Each client finds the GPU and the limits of its own share."""
    seen = findings.figures.setdefault("two_shares", {})
    for share in (left, right):
        daemon = daemon_of(harness, share)
        name = f"client-{share.name}"
        tenant.start(tenant.pod(name, share.name, "limits", "--throughput", "0"))
        observed = tenant.wait_event(name, "limits")
        keys = ("uuid", "controlPid", "serverPid")
        seen[share.name] = {"daemon": {key: daemon[key] for key in keys}, "observed": observed["observed"]}
        findings.expect("a client reaches the GPU of its share", observed["observed"]["uuid"] == daemon["uuid"])
        findings.expect("with the limits of its share", observed["problems"] == [])
    pids = {client["daemon"][key] for client in seen.values() for key in ("controlPid", "serverPid")}
    findings.expect("each GPU has a daemon and a server of its own", len(pids) == 4)


def _pin(tenant: Tenant, findings: Findings) -> list[dict[str, Any]]:
    tenant.start(tenant.pod("pin", RIGHT, "pin", "--processes", "2"))
    ended = tenant.wait_ended("pin", 90)
    findings.expect("a program that pins its processes sees the one GPU of its slot", ended == "Succeeded")
    return tenant.events_of("pin", "placed")


def _train(harness: Harness, findings: Findings) -> list[dict[str, Any]]:
    """One rank in a slot of each GPU. The machine's PyTorch and its system libraries are mounted by hostPath, which
    needs a namespace of its own."""
    with harness.namespace("ranks", enforce="privileged") as ranks:
        ranks.start(_rank(ranks, 0, LEFT, ""))
        address = wait_until("rank 0 has an address", lambda: _address(ranks, "rank-0"), 60)
        ranks.start(_rank(ranks, 1, RIGHT, address))
        trained = [ranks.wait_event(f"rank-{number}", "trained", TRAINED_SECONDS) for number in range(2)]
    findings.expect("two pods train one model", len({tuple(run["sums"]) for run in trained}) == 1)
    findings.expect("to the same parameters", all(len(run["sums"]) == 1 for run in trained))
    findings.expect("on two GPUs", len({run["gpu"] for run in trained}) == 2)
    return trained


def _address(tenant: Tenant, name: str) -> str:
    return str(tenant.kubectl.get("pod", name)["status"].get("podIP", ""))


def _rank(tenant: Tenant, number: int, share: str, address: str) -> Object:
    own = {"name": "MASTER_ADDR", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    values = {**parts.of_the_machine(), "RANK": str(number), "WORLD_SIZE": "2", "MASTER_PORT": PORT}
    environment: list[Object] = [{"name": name, "value": value} for name, value in values.items()]
    environment.append({"name": "MASTER_ADDR", "value": address} if address else own)
    pod = tenant.pod(f"rank-{number}", share, command=[sys.executable, "-c", RANK_PROGRAM], env=environment)
    parts.with_the_machines_libraries(pod)
    return pod


def _fault(harness: Harness, left: Share, right: Share, tenant: Tenant, findings: Findings) -> None:
    hit, spared = (tenant.neighbours(name, NEIGHBOURS, f"beside-{name}") for name in (LEFT, RIGHT))
    before = {share.name: daemon_of(harness, share) for share in (left, right)}
    tenant.start(tenant.pod("culprit", LEFT, "fault", "--role", "faulty", "--after", "0.5"))
    tenant.wait_event("culprit", "faulted")
    for name in hit:
        tenant.wait_event(name, "gpu-error")
    tenant.go_on(spared)
    server = before[LEFT]["serverPid"]
    wait_until(
        "another server on the left", lambda: daemon_of(harness, left).get("serverPid") not in (server, None), 30
    )
    left.wait_ready()
    after = {share.name: daemon_of(harness, share) for share in (left, right)}
    findings.figures["fault_on_left"] = {
        "codes": {LEFT: parts.errors(tenant, hit), RIGHT: parts.errors(tenant, spared)},
        "servers": {name: [before[name]["serverPid"], after[name]["serverPid"]] for name in before},
    }
    findings.expect("a fault leaves clients of the other GPU alone", parts.alive(tenant, spared) == spared)
    findings.expect("and its server", after[RIGHT]["serverPid"] == before[RIGHT]["serverPid"])


def _one_share(harness: Harness, tenant: Tenant, findings: Findings) -> None:
    """The kubelet chooses among a share's GPUs."""
    names = [f"client-{number}" for number in range(PER_GPU)]
    tenant.start(*(tenant.pod(name, BOTH, "limits", "--throughput", "0", "--hold", "5") for name in names))
    seen = [tenant.wait_event(name, "limits") for name in names]
    by_gpu = Counter(client["observed"]["uuid"] for client in seen)
    findings.figures["one_share_of_two_gpus"] = {"clients_by_gpu": by_gpu}
    findings.expect("one share serves both GPUs", len(harness.gpu_node()["status"]["daemons"]) == 2)
    findings.expect("wherever a client is, it finds its limits", not any(client["problems"] for client in seen))
