"""The operator's settings, and a cluster with one share that can be served."""

import pytest

from gpushare.controller.settings import OperatorSettings
from gpushare.kube.client import GPU_NODES, GPU_SHARES, NODES
from tests.unit.fake_kube import FakeKube


@pytest.fixture
def settings() -> OperatorSettings:
    return OperatorSettings(namespace="gpushare-system", pod_name="operator-0", image="gpushare:test", simulation=True)


@pytest.fixture
def kube() -> FakeKube:
    """One share, one node with one GPU, and an agent that has told of it."""
    kube = FakeKube()
    clients = {"perGpu": 4, "memory": {"default": "16Gi"}}
    kube.put(
        GPU_SHARES,
        {
            "metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"clients": clients, "nodeSelector": {"matchLabels": {"pool": "gpu"}}},
        },
    )
    ready = {"type": "Ready", "status": "True"}
    kube.put(
        NODES,
        {
            "metadata": {"name": "n1", "labels": {"pool": "gpu"}},
            "status": {"conditions": [ready], "allocatable": {"cpu": "8", "nvidia.com/gpu": "0"}},
        },
    )
    gpu = {"uuid": "GPU-1", "index": 0, "minor": 0, "product": "NVIDIA H200", "memoryMib": 143155, "sms": 132}
    kube.put(
        GPU_NODES,
        {
            "metadata": {"name": "n1"},
            "spec": {},
            "status": {"observedGeneration": 1, "gpus": [gpu | {"computeMode": "Default"}]},
        },
    )
    return kube
