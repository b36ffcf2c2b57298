"""The agents' findings on a share's GPUs: clients that use more than they were granted."""

from gpushare.api.gpunode import Finding
from gpushare.fleet.status.share_summary import ShareSummary

SHOWN = 3


def exceeded(summary: ShareSummary) -> str:
    """The findings on the share's GPUs as one sentence each, the oldest first; empty where there is none."""
    found = sorted(_findings(summary), key=lambda item: (item[1].since, item[0], item[1].message))
    lines = [f"node {node}: {finding.message}" for node, finding in found[:SHOWN]]
    if len(found) > SHOWN:
        lines.append(f"{len(found) - SHOWN} more in status.findings of the GpuNodes")
    return "; ".join(lines)


def _findings(summary: ShareSummary) -> list[tuple[str, Finding]]:
    return [
        (record.node.name, finding)
        for record in summary.held
        if record.node.gpu_node is not None
        for finding in record.node.gpu_node.status.findings
        if (finding.uuid, finding.share) == (record.uuid, summary.share.name)
    ]
