"""`make images REGISTRY=…`: pushes the images to an OCI registry, and says how to install from there, by digest.

Credentials are those of `buildah login` or `docker login`; REGISTRY_AUTH_FILE names another file.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from localcluster.images import names
from localcluster.images.buildah import Buildah, Image


@dataclass(frozen=True)
class Published:
    """An image in a registry. `digest`: sha256:…, of this very image."""

    repository: str
    tag: str
    digest: str


def publish(
    built: Mapping[str, Image], registry: str, cache: Path, *, plain_http: bool = False
) -> dict[str, Published]:
    """Pushes the images, tagged with the version; by target. Raises LocalClusterError."""
    found = {}
    for target, image in built.items():
        repository, tag = names.repository(names.checked_registry(registry), target), names.version()
        digest = Buildah(cache).push(Path(image.archive), f"{repository}:{tag}", plain_http=plain_http)
        found[target] = Published(repository, tag, digest)
    return found


def next_steps(images: Mapping[str, Published], cupy: str) -> list[str]:
    """What to type next, for the user."""
    operator, workload = images["operator"], images["workload"]
    pushed = f"{workload.repository}:{workload.tag}@{workload.digest}"
    change = shlex.quote(f"s|{names.placeholder('workload')}|{pushed}|")
    lines = [
        "helm install gpushare charts/gpushare --namespace gpushare-system --wait \\",
        f"  --set image.repository={operator.repository} --set-string image.tag={operator.tag} \\",
        f"  --set image.digest={operator.digest}",
        f"sed {change} examples/pod.yaml | kubectl apply -f -",
    ]
    if not cupy:
        lines.append("# This workload image has no CuPy, so it runs on simulated GPUs alone: CUPY=cupy-cuda12x adds it")
    return lines
