"""The base image for local builds: a minimal Debian or Ubuntu with Python, made from the machine's own package sources.

It replaces the public Python image of the Dockerfile, which needs a registry.
"""

import platform
import shutil
from pathlib import Path

from localcluster.cache import build_once, key_of
from localcluster.errors import LocalClusterError
from localcluster.progress import run_long

_PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"
_COMPONENTS = {"main", "universe"}
# No documentation, but each package's licence, which goes where the package goes.
_DPKG_OPTIONS = ("--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-include=/usr/share/doc/*/copyright")
_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")


def base_archive(cache: Path) -> Path:
    """rootfs.tar of the base image, made once for this machine's release, package sources and certificates."""
    codename, sources = _release()
    entry = build_once(base_entry(cache), lambda directory: _bootstrap(directory, codename, sources, cache))
    return entry / "rootfs.tar"


def base_entry(cache: Path) -> Path:
    """The base image's directory in the cache, whether it exists yet or not. Raises LocalClusterError where this
    machine is no Debian or Ubuntu."""
    codename, sources = _release()
    inputs = [("sources", sources.encode()), ("ca", _bundle())]
    return cache / f"rootfs-{key_of(inputs, _PACKAGES, *_DPKG_OPTIONS, platform.machine(), codename)}"


def _release() -> tuple[str, str]:
    """This machine's code name and package sources."""
    codename = release_codename(Path("/etc/os-release").read_text())
    sources = apt_sources(_source_files(), codename)
    if not sources:
        raise LocalClusterError(
            f"no apt source for {codename!r} under /etc/apt: the base image needs a Debian or Ubuntu"
        )
    return codename, sources


def release_codename(os_release: str) -> str:
    """VERSION_CODENAME of os-release(5), or an empty string."""
    fields = dict(line.split("=", 1) for line in os_release.splitlines() if "=" in line)
    return fields.get("VERSION_CODENAME", "").strip('"')


def apt_sources(files: list[tuple[str, str]], codename: str) -> str:
    """The binary sources of the release itself, in one-line format, without those of third parties.

    `files` are (name, text) of /etc/apt: `.list` in one-line format, `.sources` in deb822 format (sources.list(5)).
    """
    lines: list[str] = []
    for name, text in files:
        lines += _from_deb822(text) if name.endswith(".sources") else _from_list(text)
    return "".join(f"{line}\n" for line in dict.fromkeys(lines) if _is_of_release(line, codename))


def _from_list(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.startswith("deb ")]


def _from_deb822(text: str) -> list[str]:
    lines = []
    for stanza in text.split("\n\n"):
        pairs = (line.split(":", 1) for line in stanza.splitlines() if ":" in line and line[0] not in "# \t")
        fields = {key.strip().lower(): value.strip() for key, value in pairs}
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() == "no":
            continue
        key = fields.get("signed-by", "")
        option = f"[signed-by={key}] " if key.startswith("/") else ""
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                lines.append(f"deb {option}{uri} {suite} {fields.get('components', '')}")
    return lines


def _is_of_release(line: str, codename: str) -> bool:
    words = line.partition("]")[2].split() if "[" in line else line.split()[1:]
    suites_fit = len(words) > 2 and (words[1] == codename or words[1].startswith(codename + "-"))
    return bool(codename) and suites_fit and bool(set(words[2:]) & _COMPONENTS)


def _source_files() -> list[tuple[str, str]]:
    apt = Path("/etc/apt")
    paths = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    return [(path.name, path.read_text()) for path in paths if path.is_file()]


def _bundle() -> bytes:
    return _BUNDLE.read_bytes()


def _bootstrap(directory: Path, codename: str, sources: str, cache: Path) -> None:
    listing, tree, archive = directory / "apt.list", directory / "root", directory / "rootfs.tar"
    listing.write_text(sources)
    log = cache / "logs" / "rootfs.log"
    argv = ["mmdebstrap", "--mode=root", "--variant=minbase", *_DPKG_OPTIONS, f"--include={_PACKAGES}", codename]
    run_long(f"base image: {codename} with Python", [*argv, tree, listing], log, limit_s=900)
    shutil.copy(_BUNDLE, tree / _BUNDLE.relative_to("/"))
    devices = ["--exclude=./dev/*", "--exclude=./var/cache/apt/*", "--exclude=./var/lib/apt/lists/*"]
    run_long(
        "base image: packing", ["tar", "-C", tree, "--numeric-owner", *devices, "-cf", archive, "."], log, limit_s=300
    )
    shutil.rmtree(tree)
