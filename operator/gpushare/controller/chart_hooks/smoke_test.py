"""What `helm test` asks: whether the installed parts work together, seen from inside the cluster. Changes nothing."""

from gpushare.api import names
from gpushare.api.gpunode import GpuNode
from gpushare.api.webhook_probe import WEBHOOK_PROBE, WEBHOOK_REFUSAL
from gpushare.kube.client import API_ERRORS, GPU_NODES, GPU_SHARES, Kube
from gpushare.kube.coordination.lease import LeaseSpec
from gpushare.kube.resources import LEASES

SHOWN = 8


async def problems(kube: Kube, namespace: str) -> list[str]:
    """A sentence for each problem; empty where all is well. `namespace`: gpushare's own."""
    answers = [await _webhook(kube), await _operator(kube, namespace), await _agents(kube)]
    return [problem for problem in answers if problem]


async def _webhook(kube: Kube) -> str:
    try:
        await kube.create(GPU_SHARES, WEBHOOK_PROBE, dry_run=True)
    except API_ERRORS as error:
        return "" if WEBHOOK_REFUSAL in str(error) else f"the API server does not reach the webhook: {error}"
    return "a wrong GpuShare was admitted: the API server does not call the webhook"


async def _operator(kube: Kube, namespace: str) -> str:
    try:
        lease = await kube.find(LEASES, names.OPERATOR_LEASE, namespace)
    except API_ERRORS as error:
        return f"the operator's Lease cannot be read: {error}"
    return "" if lease and LeaseSpec.of(lease).holder else "no operator is active: nobody holds its Lease"


async def _agents(kube: Kube) -> str:
    """A cluster without GPUs has no GpuNodes, and that is well."""
    try:
        nodes = [GpuNode.model_validate(item) for item in (await kube.list_all(GPU_NODES)).get("items") or []]
    except API_ERRORS as error:
        return f"the GpuNodes cannot be read: {error}"
    silent = [f"{node.name}: {node.silence}" for node in nodes if node.silence]
    more = f" and {len(silent) - SHOWN} more" if len(silent) > SHOWN else ""
    return f"agents do not report ({'; '.join(silent[:SHOWN])}{more})" if silent else ""
