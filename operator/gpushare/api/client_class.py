"""The classes of clients, by which they share a GPU's time (docs/decisions/0019-classes.md)."""

from enum import StrEnum


class ClientClass(StrEnum):
    """`PROTECTED`: keeps its latency. `BEST_EFFORT`: gives way to protected clients of its GPU. `NORMAL`: neither."""

    PROTECTED = "Protected"
    NORMAL = "Normal"
    BEST_EFFORT = "BestEffort"
