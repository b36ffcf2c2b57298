"""The agents' findings on a share's GPUs: clients that use more than they were granted.

Other tenants may read a share: so it has the figures, and GpuNode, event and metric say whose they are.
"""

from gpushare.api.conditions import EventReason
from gpushare.api.gpunode import Finding
from gpushare.planner.held_gpus import NodeGpus
from gpushare.planner.status.share_summary import ShareSummary

SHOWN = 3


def exceeded(summary: ShareSummary) -> str:
    """The findings on the share's GPUs in a few words each, the oldest first; empty where there is none."""
    findings = sorted(_findings(summary), key=lambda item: (item[1].since, item[0], item[1].uuid, item[1].pid))
    if not findings:
        return ""
    lines = [f"node {node}: {_figures(finding)}" for node, finding in findings[:SHOWN]]
    if len(findings) > SHOWN:
        lines.append(f"{len(findings) - SHOWN} more")
    return f"{'; '.join(lines)} (GpuNode.status.findings names who)"


def _figures(finding: Finding) -> str:
    unit = "processes" if finding.reason == EventReason.TOO_MANY_PROCESSES else "MiB"
    used = f"{finding.observed} {unit} used, {finding.granted} {unit} granted"
    return f"{finding.reason} on GPU {finding.uuid}: {used}"


def _findings(summary: ShareSummary) -> list[tuple[str, Finding]]:
    return [
        (record.node.name, finding)
        for record in summary.held.where(_has_findings)
        if record.node.gpu_node is not None
        for finding in record.node.gpu_node.status.findings
        if (finding.uuid, finding.share) == (record.uuid, summary.share.name)
    ]


def _has_findings(part: NodeGpus) -> bool:
    return part.node.gpu_node is not None and bool(part.node.gpu_node.status.findings)
