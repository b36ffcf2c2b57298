"""Shares and nodes as the API server has them, and a report as a terminal shows it."""

import io
from typing import Any

from rich.console import Console

from gpushare.api.gpunode import GpuNode
from gpushare.api.gpushare import GpuShare
from gpushare.cli.kubectl.report import Report, show

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


def shown(report: Report) -> str:
    text = io.StringIO()
    show(report, "table", Console(file=text, width=200))
    return text.getvalue()
