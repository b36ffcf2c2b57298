"""Compute modes of a GPU, by NVIDIA's names, and who sets them."""

from enum import StrEnum


class ComputeMode(StrEnum):
    DEFAULT = "Default"
    EXCLUSIVE_PROCESS = "ExclusiveProcess"
    PROHIBITED = "Prohibited"


class ComputeModePolicy(StrEnum):
    """Who sets the compute modes of the GPUs that are shared."""

    MANAGE = "Manage"
    LEAVE = "Leave"
