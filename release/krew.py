"""The plugin as krew installs it: an archive for each platform, and the manifest that names them by their checksums."""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from localcluster.paths import REPOSITORY
from release import plugin

TEMPLATE = REPOSITORY / "release" / "krew.yaml"
HOME = "https://example.com/gpushare"
"""A placeholder: whoever publishes a release writes where it is."""
_PLATFORM = """\
    - selector:
        matchLabels: {{os: {os}, arch: {arch}}}
      uri: {home}/releases/download/v{version}/{archive}
      sha256: {checksum}
      bin: {program}
"""


def publish(version: str, directory: Path, scratch: Path) -> None:
    """Writes archives and gpushare.yaml into `directory`. Raises plugin.PluginError."""
    checksums = {}
    for platform in plugin.PLATFORMS:
        program = plugin.build(platform, version, scratch / platform / plugin.PROGRAM)
        packed = archive({plugin.PROGRAM: (program.read_bytes(), 0o755), "LICENSE": (license_text(), 0o644)})
        (directory / archive_name(version, platform)).write_bytes(packed)
        checksums[platform] = hashlib.sha256(packed).hexdigest()
    (directory / "gpushare.yaml").write_text(manifest(version, checksums))


def archive_name(version: str, platform: str) -> str:
    return f"{plugin.PROGRAM}-{version}-{platform}.tar.gz"


def archive(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    """A tar.gz of these contents and modes, without times and owners."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, (content, mode) in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), mtime=0)


def manifest(version: str, checksums: Mapping[str, str]) -> str:
    """`checksums`: of each platform's archive."""
    platforms = ""
    for platform, checksum in checksums.items():
        system, arch = platform.split("-")
        platforms += _PLATFORM.format(
            os=system,
            arch=arch,
            home=HOME,
            version=version,
            archive=archive_name(version, platform),
            checksum=checksum,
            program=plugin.PROGRAM,
        )
    return TEMPLATE.read_text().format(version=version, home=HOME, platforms=platforms.rstrip())


def license_text() -> bytes:
    return (REPOSITORY / "LICENSE").read_bytes()
