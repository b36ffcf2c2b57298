"""What clients may take of a server, in seconds, connections and bytes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What clients may take of a server."""

    handshake_seconds: float = 10.0
    """The time of a TLS handshake; Kubernetes' clients wait as long. Where both are short of CPU, who waits less
    breaks off what the other has finished, and has sent a request on."""
    head_seconds: float = 10.0
    """The time from the first byte of the first request to the end of its headers."""
    keepalive_seconds: float = 75.0
    """The time until the first request begins, and between two requests, the headers of the second one included. A
    client with many requests at once opens connections that it does not need in the end, and keeps them for later as
    any other."""
    answer_seconds: float = 10.0
    """The time of the client to take what is written, whenever it has fallen behind."""
    drain_seconds: float = 1.0
    """The time of requests under way when the server ends."""
    connections: int = 512
    """A further one takes the place of another (`peers`)."""
    body_bytes: int = 32 * 1024 * 1024
    """The memory of all large bodies together (`bodies`)."""
