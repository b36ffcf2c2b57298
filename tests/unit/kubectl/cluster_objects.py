"""Shares, nodes, pods and events as the API server has them, and a report as it is printed."""

import io
from typing import Any

from gpushare.api.gpunode import GpuNode
from gpushare.api.gpushare import GpuShare
from gpushare.kubectl.output.report import Report
from gpushare.kubectl.output.show import Printer

GPU = {"index": 0, "minor": 0, "product": "NVIDIA H200", "memoryMib": 143155, "sms": 132, "computeMode": "Default"}
LIMITS = {"threads": 50, "memoryMib": 8192}
SILENT = {"type": "AgentReporting", "status": "Unknown", "reason": "AgentSilent", "message": "no heartbeat since 9:00",
          "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip


def share(name: str = "inference", created: str = "2026-01-01T00:00:00Z", **spec: Any) -> GpuShare:
    clients = {"perGpu": 8, "threads": {"default": 25, "max": 50}, "memory": {"default": "8Gi"}}
    return GpuShare.model_validate(
        {"metadata": {"name": name, "creationTimestamp": created}, "spec": {"clients": clients} | spec}
    )


def gpu_node(*uuids: str, **status: Any) -> GpuNode:
    gpus = [GPU | {"uuid": uuid, "index": index} for index, uuid in enumerate(uuids)]
    state = {"observedGeneration": 1, "clientCeiling": 48, "driverVersion": "580.1", "gpus": gpus} | status
    return GpuNode.model_validate({"metadata": {"name": "n1", "generation": 1}, "status": state})


def pod(name: str = "app", *, namespace: str = "ml", asks: str = "inference", **parts: Any) -> dict[str, Any]:
    """`asks`: the share of whose slots it wants one; `parts`: metadata, spec, status, over what is here."""
    limits = {f"gpushare.dev/{asks}": "1"} if asks else {}
    container = {"name": "main", "image": "img:1", "resources": {"limits": limits}}
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"} | parts.get("metadata", {}),
        "spec": {"containers": [container]} | parts.get("spec", {}),
        "status": {"phase": "Pending"} | parts.get("status", {}),
    }


def event(reason: str, message: str, about: str = "Pod/app", at: str = "2026-01-01T00:00:00Z", **more: Any) -> Any:
    """An event about an object without a namespace is in `default`, as Kubernetes demands it."""
    kind, _, name = about.partition("/")
    namespace = {} if kind in ("GpuShare", "GpuNode", "Node") else {"namespace": "ml"}
    return {
        "metadata": {"name": "e", "namespace": "ml" if namespace else "default"},
        "involvedObject": {"kind": kind, "name": name, **namespace},
        "reason": reason,
        "message": message,
        "type": "Warning",
        "lastTimestamp": at,
        "reportingComponent": "gpushare-agent",
    } | more


def shown(report: Report, width: int | None = None, form: str = "") -> str:
    """What is printed: standard output and notes. `width`: of a terminal; None: a pipe."""
    text = io.StringIO()
    Printer(form, width=width, out=text, notes=text).show(report)
    return text.getvalue()
