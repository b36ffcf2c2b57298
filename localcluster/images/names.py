"""The names of the published images: in examples and chart that of a placeholder registry, which belongs to nobody.

The local cluster has images of these names; for any other, `make images REGISTRY=…` pushes them elsewhere.
"""

import re
import tomllib
from pathlib import Path

from localcluster.errors import LocalClusterError
from localcluster.paths import REPOSITORY

PLACEHOLDER = "registry.example.com"
"""Reserved for documentation (RFC 2606): nobody can serve an image from it."""
_REGISTRY = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")
_LONGEST = 200


def checked_registry(registry: str) -> str:
    """`registry`: HOST[:PORT][/PATH]. Raises LocalClusterError for anything else."""
    if len(registry) > _LONGEST or not _REGISTRY.fullmatch(registry):
        raise LocalClusterError(
            f"REGISTRY={registry[:_LONGEST]!r} names no registry: give HOST, HOST:PORT or HOST/PATH in small letters, "
            f"without https:// and without a slash at its end, such as {PLACEHOLDER}/team"
        )
    return registry


def repository(registry: str, target: str) -> str:
    """The repository of a target of the Dockerfile, without tag."""
    return f"{registry}/gpushare/{target}"


def version(source: Path = REPOSITORY) -> str:
    """The version in pyproject.toml, which is the published images' tag."""
    text: str = tomllib.loads((source / "pyproject.toml").read_text())["project"]["version"]
    return text


def placeholder(target: str) -> str:
    """The name in examples and chart."""
    return f"{repository(PLACEHOLDER, target)}:{version()}"
