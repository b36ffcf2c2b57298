"""What a process can see of MPS in its environment, and how it gives its children a tighter limit."""

import os
from collections.abc import Mapping
from pathlib import Path

DEFAULT_PIPE_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 - CUDA's default; only its existence is checked
PIPE = "CUDA_MPS_PIPE_DIRECTORY"
THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


def reachable_daemon(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The pipe directory of the MPS daemon whose client a CUDA program of this environment is; None: it is none's."""
    directory = Path(environment.get(PIPE) or DEFAULT_PIPE_DIRECTORY)
    return directory if (directory / "control").exists() else None


def limited(percent: float | None) -> dict[str, str]:
    """The environment of a child that may use `percent` of the SMs; of one without a further limit for 100 and None.

    The variable can only tighten the daemon's limit.
    """
    return {} if percent is None or percent >= 100 else {THREADS: f"{percent:g}"}
