"""Events about the node's GpuNode, since the running test began."""

from tests.cluster.harness import NODE, Harness, wait_until


def node_events(harness: Harness, reason: str) -> list[str]:
    """Their messages."""
    return [event["message"] for event in harness.cluster_events("GpuNode", NODE, reason)]


def wait_node_event(harness: Harness, reason: str, *words: str, seconds: float = 30) -> str:
    """The message of the event that has all these words. Name the GPU or the pod among them: other GPUs of the node
    may have events of the same reason.
    """
    events = wait_until(
        f"{reason}: {words}",
        lambda: [message for message in node_events(harness, reason) if all(word in message for word in words)],
        seconds,
        lambda: node_events(harness, reason),
    )
    return events[0]
