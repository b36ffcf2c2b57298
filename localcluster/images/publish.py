"""`make images REGISTRY=…`: pushes the images to an OCI registry, and says how to install from there, by digest.

Credentials are those of `buildah login` or `docker login`, credential helpers included; REGISTRY_AUTH_FILE names
another file. buildah alone reads them: they are on no command line and in no log of ours.
"""

import os
import shlex
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from localcluster.errors import LocalClusterError
from localcluster.images import names
from localcluster.images.buildah import Buildah, Image

ASKED_SECONDS = 10.0
_REFUSALS = ("unauthorized", "authentication required", "denied")
"""Words of registries that do not accept a login, or not for this repository."""


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
    published = {}
    for target, image in built.items():
        repository, tag = names.repository(names.checked_registry(registry), target), names.version()
        try:
            digest = Buildah(cache).push(Path(image.archive), f"{repository}:{tag}", plain_http=plain_http)
        except LocalClusterError as error:
            if any(word in str(error) for word in _REFUSALS):
                host = registry.partition("/")[0]
                raise LocalClusterError(f"{error}\nthe registry refuses the login for {host}: {log_in(host)}") from None
            raise
        published[target] = Published(repository, tag, digest)
    return published


def require_login(registry: str, *, plain_http: bool = False, environment: Mapping[str, str] = os.environ) -> None:
    """Raises LocalClusterError where the registry wants a login and buildah knows none: to be told before a long build.

    Whether a login is right shows when something is pushed. A registry that does not answer here is buildah's matter.
    """
    file = environment.get("REGISTRY_AUTH_FILE")
    if file and not Path(file).is_file():
        raise LocalClusterError(f"REGISTRY_AUTH_FILE={file!r} is no file: name the one that a login wrote, or unset it")
    host = registry.partition("/")[0]
    if not _wants_login(f"{'http' if plain_http else 'https'}://{host}/v2/"):
        return
    argv = ["buildah", "login", "--get-login", registry]
    known = subprocess.run(argv, capture_output=True, env=dict(environment), timeout=60)
    if known.returncode != 0:
        raise LocalClusterError(f"the registry {host} wants a login, and there is none: {log_in(host)}")


def log_in(host: str) -> str:
    """What to do."""
    return (
        f"run `buildah login {host}` or `docker login {host}` as the user who runs this, or name the file of another "
        "login with REGISTRY_AUTH_FILE (through sudo: sudo REGISTRY_AUTH_FILE=FILE make images …)"
    )


def _wants_login(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=ASKED_SECONDS):  # noqa: S310 - http or https, from require_login
            return False
    except urllib.error.HTTPError as error:
        return error.code == HTTPStatus.UNAUTHORIZED
    except OSError:
        return False


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
