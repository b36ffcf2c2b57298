"""Builds the repository's two images from its Dockerfile with buildah, without a registry and without docker.

An image's tag is the hash of its inputs, and the image is rebuilt only if they change. Layers are cached, so a change
of code does not install the dependencies again. buildah's storage is in our cache and nowhere else.
"""

import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localcluster import overlay
from localcluster.cache import build_once, contents, keep_newest, key_of, locked
from localcluster.errors import LocalClusterError
from localcluster.images import pipconf
from localcluster.images.rootfs import base_archive, base_entry
from localcluster.paths import REPOSITORY
from localcluster.progress import run_long

TARGETS = ("operator", "workload")
CUPY_LOCKS = ("cupy-cuda12x", "cupy-cuda13x")
"""What the workload image may have for real GPUs, by the CUDA version of the nodes' driver."""
_KEPT_SETS = 3
# Several clones and clusters share the cache: an image that one of them is loading is not old.
_IDLE_S = 900.0
# Pruning also removes the layers of dependencies that a later build would use again, so it is done rarely.
_STORAGE_MAX_BYTES = 6 << 30


@dataclass(frozen=True)
class Image:
    """An image's name with its tag, and the OCI archive that holds it under this name."""

    image: str
    archive: str


def build_images(cache: Path, context: Path = REPOSITORY, cupy: str = "") -> dict[str, Image]:
    """The images by target of the Dockerfile in `context`, built if need be.

    `cupy`: one of CUPY_LOCKS, for the workload image; empty: without CuPy, for simulated GPUs. Raises LocalClusterError
    if there is no Dockerfile or the build fails.
    """
    directory = images_entry(cache, context, cupy)
    base, tag = base_archive(cache), directory.name.removeprefix("images-")
    build_once(directory, lambda aside: Buildah(cache).build(context, base, tag, aside, cupy))
    os.utime(directory)
    _forget_old(cache)
    return {target: Image(_name(target, tag), str(directory / f"{target}.tar")) for target in TARGETS}


def images_entry(cache: Path, context: Path, cupy: str = "") -> Path:
    """The cache's directory of the images of that tree, whether they are built yet or not; `cupy` as above.

    Raises LocalClusterError without a Dockerfile.
    """
    dockerfile = context / "Dockerfile"
    if not dockerfile.exists():
        raise LocalClusterError(f"there is no {dockerfile}: nothing to build images from")
    inputs = ["Dockerfile", *copied_sources(dockerfile.read_text())]
    inputs += [name for name in (".dockerignore", ".containerignore") if (context / name).exists()]
    base = base_entry(cache).name
    return cache / f"images-{key_of(contents(context, inputs), base, *([cupy] if cupy else []))}"


def copied_sources(dockerfile: str) -> list[str]:
    """All sources of COPY and ADD, as paths relative to the context.

    Raises LocalClusterError for the JSON form, for variables and for wildcards, which are not supported.
    """
    joined = re.sub(r"\\\n", " ", dockerfile)
    sources: list[str] = []
    for line in joined.splitlines():
        words = shlex.split(line, comments=True) if re.match(r"\s*(COPY|ADD)\s", line, re.I) else []
        plain = [word for word in words[1:] if not word.startswith("--")]
        if not plain or any(word.startswith("--from=") for word in words):
            continue
        if any(character in word for word in plain[:-1] for character in "[*?$"):
            raise LocalClusterError(
                f"Dockerfile: {line.strip()!r} has a form that the image cache cannot read: name the paths"
            )
        sources += plain[:-1]
    return sorted({os.path.normpath(source) for source in sources})


def _name(target: str, tag: str) -> str:
    return f"localhost/gpushare-{target}:{tag}"


class Buildah:
    """buildah, with its whole storage in our cache."""

    def __init__(self, cache: Path) -> None:
        self.cache, self.root = cache, cache / "buildah"
        self.root.mkdir(parents=True, exist_ok=True)
        driver = "overlay" if overlay.works_in(self.root) else "vfs"
        self.options = [f"--root={self.root}/{driver}", f"--runroot={self.root}/run", f"--storage-driver={driver}"]
        self.env = dict(os.environ, BUILDAH_ISOLATION="chroot", XDG_RUNTIME_DIR=str(self.root / "run"))
        self.log = cache / "logs" / "images.log"

    def build(self, context: Path, base: Path, tag: str, directory: Path, cupy: str) -> None:
        """Leaves `<target>.tar` in the directory for each target."""
        with locked(self.cache / "buildah.lock"), tempfile.TemporaryDirectory(dir=self.cache) as scratch:
            base_image = self._import(base)
            volumes = pipconf.volumes(Path(scratch))
            for target in TARGETS:
                name = _name(target, tag)
                arguments = ["--build-arg", f"BASE={base_image}", "--build-arg", f"CUPY={cupy}"]
                build = ["build", "--layers", "--target", target, *arguments, *volumes, "--tag", name, str(context)]
                self._run(f"image {target}", build)
                self._run(f"archive of image {target}", ["push", name, f"oci-archive:{directory}/{target}.tar:{name}"])

    def _import(self, base: Path) -> str:
        name = f"localhost/gpushare-base:{base.parent.name}"
        if self._output("images", "--quiet", "--filter", f"reference={name}"):
            return name
        container = self._output("from", "scratch")
        self._run("base image: unpacking", ["add", container, str(base), "/"])
        self._run("base image: commit", ["commit", "--rm", container, name])
        return name

    def push(self, archive: Path, reference: str, *, plain_http: bool) -> str:
        """Pushes the image of an OCI archive to a registry as `reference`, and returns its digest there."""
        with locked(self.cache / "buildah.lock"), tempfile.TemporaryDirectory(dir=self.cache) as scratch:
            name, digest = self._output("pull", "--quiet", f"oci-archive:{archive}"), Path(scratch) / "digest"
            insecure = ["--tls-verify=false"] if plain_http else []
            push = ["push", "--format=oci", f"--digestfile={digest}", *insecure, name, f"docker://{reference}"]
            # Its own XDG_RUNTIME_DIR is the user's: that is where a login is kept.
            argv = ["buildah", *self.options, *push]
            run_long(f"push of {reference}", argv, self.log, limit_s=1800, env=dict(os.environ))
            return digest.read_text().strip()

    def derive(self, archive: Path, context: Path, name: str, result: Path) -> None:
        """Builds the Dockerfile in `context` on the operator's image in `archive`, as the OCI archive `result`."""
        with locked(self.cache / "buildah.lock"):
            operator = self._output("pull", "--quiet", f"oci-archive:{archive}")
            build = ["build", "--build-arg", f"OPERATOR={operator}", "--pull=never", "--tag", name, str(context)]
            self._run(f"image {name}", build)
            self._run(f"archive of image {name}", ["push", name, f"oci-archive:{result}:{name}"])

    def forget(self, tags: Sequence[str]) -> None:
        """Removes these images, and unnamed layers once the storage has grown large."""
        names = [_name(target, tag) for tag in tags for target in TARGETS]
        commands = [["rmi", *names]]
        if _used_bytes(self.root) > _STORAGE_MAX_BYTES:
            commands.append(["rmi", "--prune"])
        with locked(self.cache / "buildah.lock"):
            for command in commands:
                argv = ["buildah", *self.options, *command]
                subprocess.run(argv, capture_output=True, env=self.env, timeout=300)

    def _run(self, label: str, arguments: Sequence[str]) -> None:
        run_long(label, ["buildah", *self.options, *arguments], self.log, limit_s=1800, env=self.env)

    def _output(self, *arguments: str) -> str:
        argv = ["buildah", *self.options, *arguments]
        result = subprocess.run(argv, capture_output=True, text=True, env=self.env, timeout=120)
        if result.returncode != 0:
            raise LocalClusterError(f"{shlex.join(argv)}: {result.stderr.strip()}")
        return result.stdout.strip()


def _forget_old(cache: Path) -> None:
    entries = [path for path in cache.glob("images-*") if path.is_dir() and not path.name.endswith(".tmp")]
    if removed := keep_newest(entries, _KEPT_SETS, _IDLE_S):
        Buildah(cache).forget([path.name.removeprefix("images-") for path in removed])


def _used_bytes(directory: Path) -> int:
    argv = ["du", "--summarize", "--one-file-system", "--block-size=1", str(directory)]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    return int(result.stdout.split()[0]) if result.stdout else 0
