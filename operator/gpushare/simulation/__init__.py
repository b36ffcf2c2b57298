"""Stand-ins for NVML and for the MPS executables, for machines without a GPU: docs/simulation.md.

Everything here except `nvml` uses the standard library alone. Importing this package imports nothing, because the
executables in `bin/` are started every few seconds and have to be up within milliseconds.
"""

TYPE_CHECKING = False  # type checkers know this name; importing it from typing would cost 6 ms
if TYPE_CHECKING:
    from pathlib import Path


def bin_dir() -> "Path":
    """The directory of the simulated `nvidia-cuda-mps-control` and `nvidia-cuda-mps-server`."""
    from pathlib import Path

    return Path(__file__).resolve().parent / "bin"
