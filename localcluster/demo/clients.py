"""The clients of the demo, read from their pods and from the JSON lines of their logs."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from localcluster.kubectl import CommandError, Kubectl

MIB = 1024 * 1024
LOG_LINES = 400


@dataclass(frozen=True, slots=True)
class DemoClient:
    """`threads`: percent; `sms`: visible to the client, of `total_sms`; `checks`: results checked so far."""

    name: str
    role: str = ""
    phase: str = ""
    gpu: str = ""
    threads: int | None = None
    memory_mib: int | None = None
    sms: int | None = None
    total_sms: int | None = None
    free_mib: int | None = None
    above_refused: bool | None = None
    checks: int = 0
    problem: str = ""

    @property
    def limits_hold(self) -> bool:
        return self.sms is not None and not self.problem and bool(self.above_refused)


def read_clients(kubectl: Kubectl, names: Iterable[str]) -> list[DemoClient]:
    """One DemoClient per name; the phase is Deleted if the pod is gone."""
    pods = {pod["metadata"]["name"]: pod for pod in kubectl.items("pods")}
    return [_read(kubectl, name, pods.get(name)) for name in names]


def _read(kubectl: Kubectl, name: str, pod: dict[str, Any] | None) -> DemoClient:
    if pod is None:
        return DemoClient(name, phase="Deleted")
    deleting = "deletionTimestamp" in pod["metadata"]
    client = DemoClient(name, phase="Terminating" if deleting else pod["status"].get("phase", "Pending"))
    try:
        log = kubectl("logs", name, f"--tail={LOG_LINES}", seconds=10)
    except CommandError:
        return client
    return from_log(client, log)


def from_log(client: DemoClient, log: str) -> DemoClient:
    """`client`, updated by its log. Lines that are not JSON are skipped."""
    for line in log.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        client = _with_event(client, event)
    return client


def _with_event(client: DemoClient, event: dict[str, Any]) -> DemoClient:
    match event.get("event"):
        case "limits":
            granted, observed = event["granted"], event["observed"]
            return replace(
                client,
                gpu=observed["uuid"],
                threads=granted["threads"],
                memory_mib=granted["memory"] and granted["memory"] // MIB,
                sms=observed["sms"],
                total_sms=observed["total_sms"],
                free_mib=observed["free"] // MIB,
                above_refused=observed["above_refused"],
                problem="; ".join(event["problems"]),
            )
        case "started" | "progress" | "finished":
            return replace(client, role=event["role"], checks=event.get("checks", client.checks))
        case "terminated":
            return replace(client, role=event["role"], problem=f"ended through MPS (CUDA error {event['code']})")
        case "wrong" | "gpu-error" | "worker-died" | "usage":
            return replace(client, problem=event["message"])
    return client
