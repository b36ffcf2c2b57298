"""`make release`: everything that is published for one version, in dist/VERSION.

Guarantees: nothing is published or tagged; dist/VERSION appears complete or not at all, and a second run from the same
commit on the same machine replaces it by the same bytes.
A tree with uncommitted changes is refused: the version would not say what is inside. `--preview` allows it, marks the
version as a preview, and takes the notes from the section Unreleased.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localcluster.doctor import require
from localcluster.errors import LocalClusterError
from localcluster.images import names
from localcluster.images.buildah import build_images
from localcluster.packages import ensure_packages
from localcluster.paths import REPOSITORY, cache_root
from localcluster.programs.build import HELM, build_component
from localcluster.progress import say
from release import changelog, krew, sbom
from release.oci import OciArchive
from release.packages import contents, locked_tools
from release.plugin import PluginError

CHART = REPOSITORY / "charts" / "gpushare"
CHARTED_IMAGE = "operator"
"""The target of the Dockerfile whose digest goes into the chart."""


TOOLS = {"operator": ("build.lock", "native.lock"), "workload": ("build.lock",)}
"""The locks, below requirements, of what makes an image and is not in it; by target of the Dockerfile."""


class ReleaseError(Exception):
    """The tree cannot be released. The message says why and what to do."""


@dataclass(frozen=True)
class Source:
    """The tree that is released."""

    version: str
    notes: str
    commit: str
    moment: int
    """Unix seconds of the commit."""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make release", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, default=REPOSITORY / "dist", help="default: dist")
    parser.add_argument("--preview", action="store_true", help="accept uncommitted changes; the version says so")
    parser.add_argument(
        "--registry", default=names.PLACEHOLDER, help=f"where the images will be pushed; default: {names.PLACEHOLDER}"
    )
    arguments = parser.parse_args(argv)
    try:
        registry = names.checked_registry(arguments.registry)
        directory = release(read_source(REPOSITORY, arguments.preview), arguments.output, registry)
    except (ReleaseError, PluginError, changelog.NoSectionError, LocalClusterError) as error:
        print(error, file=sys.stderr)
        return 1
    print(directory)
    return 0


def read_source(repository: Path, preview: bool) -> Source:
    """Version, notes and commit of the tree. Raises ReleaseError and NoSectionError where it cannot be released."""
    version = names.version(repository)
    check_chart((repository / "charts" / "gpushare" / "Chart.yaml").read_text(), version)
    commit, moment = _git(repository, "log", "-1", "--format=%H %ct").split()
    changed = _git(repository, "status", "--porcelain").splitlines()
    if changed and not preview:
        shown = "\n".join(f"  {line}" for line in changed[:10])
        raise ReleaseError(
            f"the tree has {len(changed)} uncommitted changes: commit them, or make a preview"
            f" (make release PREVIEW=1)\n{shown}"
        )
    text = (repository / "CHANGELOG.md").read_text()
    if not preview:
        return Source(version, changelog.notes(text, version), commit, int(moment))
    marked = f"{version}-preview.g{commit[:12]}" + (".changed" if changed else "")
    return Source(marked, changelog.notes(text, changelog.UNRELEASED), commit, int(moment))


def check_chart(chart: str, version: str) -> None:
    """Raises ReleaseError where the chart is of another version than pyproject.toml."""
    for field in ("version", "appVersion"):
        match = re.search(rf'^{field}: "?([^"\n]+)"?$', chart, re.MULTILINE)
        value = match[1] if match else "nothing"
        if value != version:
            raise ReleaseError(f"Chart.yaml says {field}: {value}, pyproject.toml says {version}: make them equal")


def release(source: Source, output: Path, registry: str) -> Path:
    """Builds dist/VERSION and returns it. Raises LocalClusterError or PluginError where a build fails."""
    require()
    ensure_packages(cache_root())
    built = build_images(cache_root())
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".release-", dir=output) as scratch:
        aside = Path(scratch) / source.version
        aside.mkdir()
        digests = {target: _image(target, Path(image.archive), source, aside) for target, image in built.items()}
        _chart(registry, digests[CHARTED_IMAGE], source, aside, Path(scratch))
        krew.publish(source.version, aside, Path(scratch))
        (aside / "NOTES.md").write_text(source.notes)
        (aside / "images.json").write_text(
            json.dumps({"version": source.version, "commit": source.commit, "images": digests}, indent=1) + "\n"
        )
        (aside / "SHA256SUMS").write_text(checksums(aside))
        finished = output / source.version
        shutil.rmtree(finished, ignore_errors=True)
        aside.rename(finished)
    return finished


def checksums(directory: Path) -> str:
    """Lines as `sha256sum --check` reads them, ordered by name."""
    lines = []
    for path in sorted(directory.iterdir()):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    return "".join(lines)


def with_image(values: str, registry: str, digest: str) -> str:
    """The chart's values.yaml with registry and digest of the image. Raises ReleaseError where it has no such lines."""
    placeholder, published = (names.repository(host, CHARTED_IMAGE) for host in (names.PLACEHOLDER, registry))
    for line, new in (
        ('  digest: ""', f"  digest: {digest}"),
        (f"  repository: {placeholder}", f"  repository: {published}"),
    ):
        values, count = re.subn(rf"^{re.escape(line)}$", new, values, flags=re.MULTILINE)
        if count != 1:
            raise ReleaseError(f"values.yaml has {count} lines `{line}`: one is expected, below image")
    return values


def _image(target: str, archive: Path, source: Source, directory: Path) -> str:
    """Copies the archive, writes its bill of materials, returns the digest."""
    name = f"gpushare-{target}"
    image = OciArchive(archive)
    say(f"{name}: {image.digest}, {image.compressed_bytes / 1e6:.0f} MB to download")
    shutil.copyfile(archive, directory / f"{name}-{source.version}.oci.tar")
    tools = [tool for lock in TOOLS[target] for tool in locked_tools((REPOSITORY / "requirements" / lock).read_text())]
    bill = sbom.document(name, source.version, image.digest, contents(image), source.moment, tools)
    (directory / f"{name}-{source.version}.cdx.json").write_text(bill)
    return image.digest


def _chart(registry: str, digest: str, source: Source, directory: Path, scratch: Path) -> None:
    """Packages the chart with registry and digest of its image."""
    helm = build_component(HELM, cache_root()) / "helm"
    copy = scratch / "gpushare"
    shutil.copytree(CHART, copy)
    values = copy / "values.yaml"
    values.write_text(with_image(values.read_text(), registry, digest))
    for path in copy.rglob("*"):
        os.utime(path, (source.moment, source.moment))
    versions = ["--version", source.version, "--app-version", source.version]
    argv = [str(helm), "package", str(copy), *versions, "--destination", str(directory)]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    if result.returncode != 0:
        raise ReleaseError(f"helm package: {result.stderr.strip()}")


def _git(repository: Path, *arguments: str) -> str:
    argv = ["git", "-C", str(repository), *arguments]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    if result.returncode != 0:
        raise ReleaseError(f"git {arguments[0]}: {result.stderr.strip()}")
    return result.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
