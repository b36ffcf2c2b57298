"""What the agents found on a share's GPUs: clients that use more than they were granted."""

from gpushare.api.gpunode import Finding
from gpushare.fleet.share_summary import ShareSummary

TOLD = 3


def exceeded(standing: ShareSummary) -> str:
    """The findings on the share's GPUs as one sentence each, the oldest first; empty where there is none."""
    found = sorted(_findings(standing), key=lambda item: (item[1].since, item[0], item[1].message))
    lines = [f"node {node}: {finding.message}" for node, finding in found[:TOLD]]
    if len(found) > TOLD:
        lines.append(f"{len(found) - TOLD} more in status.findings of the GpuNodes")
    return "; ".join(lines)


def _findings(standing: ShareSummary) -> list[tuple[str, Finding]]:
    return [
        (place.node.name, finding)
        for place in standing.held
        if place.node.gpu_node is not None
        for finding in place.node.gpu_node.status.findings
        if (finding.uuid, finding.share) == (place.uuid, standing.share.name)
    ]
