"""`make kubectl`: the kubectl plugin as one file, a zip that Python runs, for one platform and every supported Python.

It holds what the plugin imports and nothing else: our packages of PACKAGES, and the distributions of REQUIRED at the
versions and hashes of requirements.lock. One of those has compiled code, which cannot be imported from a zip: so the
program unpacks itself once into the user's cache (`unpack`), and starts from there.

Guarantees: from one tree every file comes out the same, byte by byte.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from localcluster.images.names import version
from localcluster.paths import REPOSITORY
from release import unpack

PLATFORMS = {
    "linux-amd64": ("manylinux_2_17_x86_64",),
    "linux-arm64": ("manylinux_2_17_aarch64",),
    "darwin-amd64": ("macosx_10_13_x86_64",),
    "darwin-arm64": ("macosx_11_0_arm64",),
}
"""The platforms as krew names them, and as pip does."""
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
REQUIRED = (
    "annotated-types",
    "prometheus-client",
    "pydantic",
    "pydantic-core",
    "pyyaml",
    "typing-extensions",
    "typing-inspection",
)
PACKAGES = ("api", "controller", "grant", "kube", "kubectl", "messages", "mps", "planner")
"""Below operator/gpushare."""
MODULES = ("__init__.py", "process/__init__.py", "process/event_loop.py")
"""Below operator/gpushare, of packages that are not taken whole."""
PROGRAM = "kubectl-gpushare"
LEFT_OUT = ("*.pyi", "*.typed", "_yaml*", "*.dist-info", "__pycache__", "mypy.py", "v1")
"""Files of distributions. PyYAML works without its compiled parser; pydantic without its first version's API."""
_PINNED = re.compile(r"^(?P<name>[a-z0-9-]+)==.*?(?=^\S|\Z)", re.MULTILINE | re.DOTALL)


class PluginError(Exception):
    """The program cannot be built. The message says why."""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make kubectl", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--platform", choices=PLATFORMS, default=this_platform(), help="default: this machine's")
    parser.add_argument("--output", type=Path, default=REPOSITORY / "build" / PROGRAM, help=f"default: build/{PROGRAM}")
    arguments = parser.parse_args(argv)
    try:
        program = build(arguments.platform, version(), arguments.output)
    except PluginError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{program} ({program.stat().st_size / 1e6:.1f} MB)")
    return 0


def this_platform() -> str:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    return f"{sys.platform}-{machine}"


def build(platform: str, version: str, output: Path) -> Path:
    """Writes the program to `output` and returns that. Raises PluginError."""
    with tempfile.TemporaryDirectory(prefix="kubectl-gpushare-") as scratch:
        tree = Path(scratch) / "tree"
        inside = tree / unpack.INSIDE
        for package in PACKAGES:
            source = REPOSITORY / "operator" / "gpushare" / package
            shutil.copytree(source, inside / "gpushare" / package, ignore=shutil.ignore_patterns("__pycache__"))
        for name in MODULES:
            (inside / "gpushare" / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(REPOSITORY / "operator" / "gpushare" / name, inside / "gpushare" / name)
        _add_distributions(platform, inside, Path(scratch))
        about = inside / f"gpushare-{version}.dist-info" / "METADATA"
        about.parent.mkdir()
        about.write_text(f"Metadata-Version: 2.4\nName: gpushare\nVersion: {version}\n")
        shutil.copyfile(REPOSITORY / "LICENSE", about.parent / "LICENSE")
        text = (REPOSITORY / "release" / "unpack.py").read_text()
        (tree / "__main__.py").write_text(text.replace(unpack.UNKNOWN, digest(inside)))
        output.parent.mkdir(parents=True, exist_ok=True)
        _write_archive(tree, output)
    return output


def _write_archive(tree: Path, output: Path) -> None:
    """Writes as the standard library's zipapp does, but with the files in order and without their times."""
    with output.open("wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for path in sorted(path for path in tree.rglob("*") if path.is_file()):
                entry = zipfile.ZipInfo(str(path.relative_to(tree)))
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    output.chmod(0o755)


def digest(folder: Path) -> str:
    """The digest of all files below, by name and content."""
    digest_of_all = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest_of_all.update(f"{path.relative_to(folder)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest_of_all.hexdigest()[:16]


def pinned(lock: str, names: Iterable[str]) -> str:
    """The entries of these distributions, with their hashes. Raises PluginError where one is missing."""
    entries = {match["name"]: match[0] for match in _PINNED.finditer(lock)}
    if missing := [name for name in names if name not in entries]:
        raise PluginError(f"requirements.lock has no {', '.join(missing)}: run make lock")
    return "".join(entries[name] for name in names)


def _add_distributions(platform: str, inside: Path, scratch: Path) -> None:
    requirements, wheels = scratch / "requirements.txt", scratch / "wheels"
    requirements.write_text(pinned((REPOSITORY / "requirements.lock").read_text(), REQUIRED))
    for python in PYTHONS:
        _download(requirements, wheels, platform, python)
    unpacked = scratch / "unpacked"
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
    shutil.copytree(unpacked, inside, ignore=shutil.ignore_patterns(*LEFT_OUT), dirs_exist_ok=True)


def _download(requirements: Path, wheels: Path, platform: str, python: str) -> None:
    tags = [f"--platform={tag}" for tag in PLATFORMS[platform]]
    argv = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:",
        "--no-deps", "--require-hashes", f"--python-version={python}", *tags, f"--dest={wheels}",
        "-r", str(requirements),
    ]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise PluginError(f"pip download for {platform}, Python {python}: {done.stderr.strip()}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
