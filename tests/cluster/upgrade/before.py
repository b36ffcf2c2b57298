"""The release before this one: its sources by git, its images by its own Dockerfile, its chart.

`before.txt` holds the commit: the last release's, or, before there is one, the commit that stands for it.
"""

import subprocess
from dataclasses import replace
from pathlib import Path

from localcluster.cache import build_once
from localcluster.cluster import cluster
from localcluster.errors import LocalClusterError
from localcluster.images import buildah
from localcluster.paths import REPOSITORY, cache_root
from localcluster.stack import Stack
from tests.cluster.harness import Harness

BEFORE = Path(__file__).with_name("before.txt")
SECONDS = 60.0


def commit_of(reference: str, repository: Path = REPOSITORY) -> str:
    """Raises LocalClusterError where the clone does not have it."""
    argv = ["git", "-C", str(repository), "rev-parse", "--verify", "--quiet", f"{reference}^{{commit}}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode != 0:
        raise LocalClusterError(
            f"this clone does not have the release before, {reference}: fetch the whole history (git fetch --unshallow "
            f"--tags), or name another commit: --before COMMIT"
        )
    return done.stdout.strip()


def sources(reference: str, cache: Path, repository: Path = REPOSITORY) -> Path:
    """The tree of that commit, kept in the cache. Raises LocalClusterError."""
    commit = commit_of(reference, repository)

    def unpack(directory: Path) -> None:
        archive = subprocess.run(
            ["git", "-C", str(repository), "archive", commit], check=True, capture_output=True, timeout=SECONDS
        )
        subprocess.run(["tar", "-x", "-C", str(directory)], input=archive.stdout, check=True, timeout=SECONDS)

    return build_once(cache / f"sources-{commit[:16]}", unpack)


def release_before(harness: Harness, reference: str) -> Stack:
    """The same cluster with the images, which are loaded, and the chart of that commit. Raises LocalClusterError."""
    cache = cache_root()
    tree = sources(reference, cache)
    built = buildah.build_images(cache, tree)
    cluster.load_images(harness.layout, [Path(image.archive) for image in built.values()])
    return replace(
        harness.stack,
        operator_image=built["operator"].image,
        workload_image=built["workload"].image,
        chart=tree / "charts" / "gpushare",
    )
