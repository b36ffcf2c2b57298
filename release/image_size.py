"""Measures what the images weigh, by layer and by package: python3 -m release.image_size [--before ARCHIVE …].

Writes measurements/results/image-size.json. `--before` adds the same figures of an older operator image.
Sizes are the sums of the files' own sizes, in bytes, without what a file system adds.
"""

import argparse
import json
import posixpath
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from localcluster.images.buildah import build_images
from localcluster.paths import REPOSITORY, cache_root
from release.oci import File, OciArchive
from release.packages import Package, contents

RESULT = REPOSITORY / "measurements" / "results" / "image-size.json"
_LISTED = 25
"""Packages that are listed by name; the others are one sum."""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m release.image_size", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--before", type=Path, help="OCI archive of an older operator image")
    arguments = parser.parse_args(argv)
    archives = {name: Path(image.archive) for name, image in build_images(cache_root()).items()}
    if arguments.before:
        archives["operator, before"] = arguments.before
    measured = {name: measure(OciArchive(archive)) for name, archive in sorted(archives.items())}
    RESULT.write_text(json.dumps(measured, indent=1) + "\n")
    for name, figures in measured.items():
        print(f"{name}: {figures['bytes'] / 1e6:.0f} MB, {figures['compressed_bytes'] / 1e6:.0f} MB compressed")
    return 0


def measure(archive: OciArchive) -> dict[str, Any]:
    """Bytes of the image: in all, to download, by layer, by Debian package, by Python distribution."""
    files = archive.files()
    packages = contents(archive).packages
    by_layer = Counter[int]()
    for file in files:
        by_layer[file.layer] += file.size
    return {
        "architecture": archive.architecture,
        "bytes": sum(file.size for file in files),
        "compressed_bytes": archive.compressed_bytes,
        "files": len(files),
        "layers": [
            {
                "created_by": layer.created_by[:100],
                "bytes": by_layer[number],
                "compressed_bytes": layer.compressed_bytes,
            }
            for number, layer in enumerate(archive.layers)
        ],
        "deb": _largest(by_package(files, [package for package in packages if package.kind == "deb"])),
        "pypi": _largest(by_package(files, [package for package in packages if package.kind == "pypi"])),
        "byte_code_bytes": sum(file.size for file in files if file.path.endswith(".pyc")),
    }


def by_package(files: Iterable[File], packages: Iterable[Package]) -> dict[str, int]:
    """Bytes by package name. Byte code counts for the package of its source."""
    files = list(files)
    links = {file.path: file.target for file in files if file.target and "/" not in file.path}
    owners = {_through(links, path): package.name for package in packages for path in package.paths}
    sizes = Counter[str]()
    for file in files:
        if owner := owners.get(file.path) or owners.get(source_of(file.path)):
            sizes[owner] += file.size
    return dict(sizes)


def source_of(path: str) -> str:
    """The source file of byte code in a `__pycache__`; any other path as it is."""
    directory, name = posixpath.split(path)
    if not name.endswith(".pyc") or posixpath.basename(directory) != "__pycache__":
        return path
    return posixpath.join(posixpath.dirname(directory), name.split(".")[0] + ".py")


def _through(links: dict[str, str], path: str) -> str:
    """dpkg lists lib/x also where lib is a link to usr/lib."""
    top, _, rest = path.partition("/")
    return posixpath.normpath(f"{links[top].lstrip('/')}/{rest}") if rest and top in links else path


def _largest(sizes: dict[str, int]) -> dict[str, int]:
    ordered = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    others = sum(size for _, size in ordered[_LISTED:])
    return {"all": sum(sizes.values())} | dict(ordered[:_LISTED]) | ({"others": others} if others else {})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
