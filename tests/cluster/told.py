"""What is told of a node: the events of its GpuNode."""

from tests.cluster.harness import NODE, Harness, wait_until


def node_events(harness: Harness, reason: str) -> list[str]:
    selector = f"involvedObject.kind=GpuNode,involvedObject.name={NODE},reason={reason}"
    found = harness.kubectl.within("default").items("events", "--field-selector", selector)
    return [event["message"] for event in found]


def wait_told(harness: Harness, reason: str, words: str, seconds: float = 30) -> str:
    """The event of the GpuNode that has these words."""
    found = wait_until(
        f"{reason}: {words}",
        lambda: [message for message in node_events(harness, reason) if words in message],
        seconds,
        lambda: node_events(harness, reason),
    )
    return found[0]
