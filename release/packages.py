"""What an image contains, by package: Debian packages of dpkg's database, Python distributions of site-packages, and
the front libraries, which are no package's.
"""

import csv
import email.parser
import hashlib
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from release.oci import OciArchive

_DPKG_STATUS = "var/lib/dpkg/status"
_DPKG_LIST = re.compile(r"var/lib/dpkg/info/(?P<name>[^/:]+)(:[^/]+)?\.list")
_DIST_INFO = re.compile(
    r"(?P<site>.*/(site|dist)-packages)/(?P<folder>[^/]+\.(dist|egg)-info)/(?P<file>METADATA|PKG-INFO|RECORD)"
)
_COPYRIGHT = re.compile(r"usr/share/doc/(?P<name>[^/]+)/copyright")
_FRONT = re.compile(r"opt/gpushare/lib/gpushare/(?P<name>[^/]+)")
_PINNED = re.compile(r"^(?P<name>[a-z0-9-]+)==(?P<version>\S+)", re.MULTILINE)
_OS_RELEASE = ("etc/os-release", "usr/lib/os-release")


@dataclass(frozen=True)
class Package:
    """`kind`: deb, pypi or generic, as in a package URL. `licence`: SPDX, the package's own words, or empty."""

    kind: str
    name: str
    version: str
    architecture: str = ""
    licence: str = ""
    homepage: str = ""
    paths: frozenset[str] = frozenset()
    """Paths that it owns in the root file system, without a leading slash; byte code is not among them."""
    sha256: str = ""
    """Of a single file, in hexadecimal digits."""


@dataclass(frozen=True)
class Contents:
    distribution: str
    """ID of os-release(5), such as debian; with `release`, its VERSION_ID."""
    release: str
    packages: tuple[Package, ...]


def contents(archive: OciArchive) -> Contents:
    """Everything that is installed in the image, ordered by kind and name."""
    read = archive.read(
        lambda path: (
            path in (_DPKG_STATUS, *_OS_RELEASE)
            or any(wanted.fullmatch(path) for wanted in (_DPKG_LIST, _DIST_INFO, _COPYRIGHT, _FRONT))
        )
    )
    texts = {path: content.decode(errors="replace") for path, content in read.items()}
    fields = dict(
        line.split("=", 1) for name in _OS_RELEASE for line in texts.get(name, "").splitlines() if "=" in line
    )
    packages = [*debian_packages(texts), *python_distributions(texts), *front_libraries(read)]
    return Contents(
        fields.get("ID", "linux").strip('"'),
        fields.get("VERSION_ID", "").strip('"'),
        tuple(sorted(packages, key=lambda package: (package.kind, package.name))),
    )


def debian_packages(texts: Mapping[str, str]) -> list[Package]:
    """The installed packages of dpkg's database. `texts`: files of the image by path."""
    lists = {match["name"]: text for path, text in texts.items() if (match := _DPKG_LIST.fullmatch(path))}
    return [
        Package(
            "deb",
            fields["Package"],
            fields["Version"],
            architecture=fields["Architecture"],
            licence=_debian_licence(texts.get(f"usr/share/doc/{fields['Package']}/copyright", "")),
            homepage=fields.get("Homepage", ""),
            paths=frozenset(line.strip("/") for line in lists.get(fields["Package"], "").splitlines()),
        )
        for fields in _stanzas(texts.get(_DPKG_STATUS, ""))
        if fields.get("Status", "").endswith(" installed")
    ]


def python_distributions(texts: Mapping[str, str]) -> list[Package]:
    """The distributions of every site-packages. `texts`: files of the image by path."""
    distributions = []
    for path, text in texts.items():
        match = _DIST_INFO.fullmatch(path)
        if match is None or match["file"] == "RECORD":
            continue
        metadata = email.parser.HeaderParser().parsestr(text)
        record = texts.get(f"{match['site']}/{match['folder']}/RECORD", "")
        owned = (posixpath.normpath(f"{match['site']}/{row[0]}") for row in csv.reader(record.splitlines()) if row)
        distributions.append(
            Package(
                "pypi",
                _normalized(metadata["Name"]),
                metadata["Version"],
                licence=_licence(metadata.get("License-Expression"), metadata.get("License")),
                homepage=metadata.get("Home-page") or _project_url(metadata.get_all("Project-URL", [])),
                paths=frozenset(owned),
            )
        )
    return distributions


def front_libraries(files: Mapping[str, bytes]) -> list[Package]:
    """The C libraries of native/, which go into clients' containers. `files`: of the image by path."""
    return [
        Package(
            "generic",
            match["name"],
            "",
            licence="Apache-2.0",
            paths=frozenset({path}),
            sha256=hashlib.sha256(content).hexdigest(),
        )
        for path, content in files.items()
        if (match := _FRONT.fullmatch(path))
    ]


def locked_tools(lock: str) -> list[Package]:
    """The Python distributions of a lock file's text, such as a compiler: they make an image and are not in it."""
    return [Package("pypi", match["name"], match["version"]) for match in _PINNED.finditer(lock)]


def _debian_licence(copyright_file: str) -> str:
    """The licences that a machine-readable copyright file (DEP-5) names; empty for one of free text."""
    names = set(re.findall(r"^License: *([A-Za-z0-9][\w.+/ -]{0,60}?) *$", copyright_file, re.MULTILINE))
    return " AND ".join(f"({name})" if " " in name else name for name in sorted(names))


def _stanzas(status: str) -> Iterable[dict[str, str]]:
    for stanza in status.strip().split("\n\n"):
        if stanza:
            yield dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line and line[0] != " ")


def _normalized(name: str) -> str:
    """The name as package URLs have it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _licence(expression: str | None, text: str | None) -> str:
    """Some distributions put the licence's whole text into the field: its name alone is of use."""
    return expression or (text if text and "\n" not in text and len(text) <= 64 else "") or ""


def _project_url(urls: Iterable[str]) -> str:
    known = dict(url.split(", ", 1) for url in urls if ", " in url)
    return next((known[label] for label in ("Homepage", "Source", "Repository") if label in known), "")
