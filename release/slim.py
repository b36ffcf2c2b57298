"""Reduces an image's file system to what Python programs need. Runs as a step of the Dockerfile, in any Debian base.

    python3 slim.py system                     # Debian packages and parts of Python's library
    python3 slim.py system --without-shell     # and the shell with its programs
    python3 slim.py packages /opt/gpushare     # what the Python packages of an environment carry for development

Guarantees: a file goes only when every Debian package that lists it goes; a package stays when a program or library
that stays links one of its libraries. dpkg's status lists exactly the packages that stay, so that scanners and the bill
of materials find them. Needs nothing but Python's standard library and `ldd`.
"""

import compileall
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from py_compile import PycInvalidationMode

KEPT = re.compile(
    r"base-files|base-passwd|ca-certificates|libc-bin|libc6|libgcc-s1|libstdc\+\+6|media-types|netbase|openssl"
    r"|(lib)?python3(\.\d+)?(-minimal|-stdlib)?"
)
"""Names of Debian packages that stay by themselves; those with the libraries that they link stay with them."""
SHELL = re.compile("coreutils|dash")
"""They stay for workloads that are started by a script, and for `kubectl exec` into them."""

# Documentation, translations, package manager's data, and character sets that Python has of its own.
_SYSTEM_DATA = (
    "usr/share/man", "usr/share/info", "usr/share/locale", "usr/share/lintian", "usr/share/bash-completion",
    "usr/share/bug", "usr/share/python-wheels", "usr/share/perl", "usr/share/perl5", "usr/lib/*/gconv",
    "var/cache/*", "var/lib/apt", "var/log/*",
)  # fmt: skip
# What makes and shows programs. `site-packages` and `dist-packages` are the base's own: pip and setuptools.
_LIBRARY_PARTS = (
    "ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "tkinter", "turtledemo", "turtle.py", "config-*",
    "site-packages/*",
)  # fmt: skip
_BASE_PROGRAMS = ("pip*", "idle*", "pydoc*", "2to3*", "wheel*")
_DEVELOPMENT = re.compile(r"(^|/)(tests?|testing)/|\.(pyx|pxd|pyi|c|h|cc|cpp|hash)$")
# A class for each kind and each group of the API, which the library imports where it is named. We name none.
_GENERATED = re.compile(r"^kubernetes/(aio/)?client/(api|models)/(?!__init__\.py$)")

Linked = Callable[[Path], Collection[Path]]


def main(arguments: list[str]) -> None:
    if arguments in (["system"], ["system", "--without-shell"]):
        slim_system(Path("/"), shell="--without-shell" not in arguments)
    elif arguments[:1] == ["packages"] and len(arguments) == 2:
        for site in sorted(Path(arguments[1]).glob("lib/python3*/site-packages")):
            slim_packages(site)
    else:
        raise SystemExit(__doc__)


def slim_system(root: Path, shell: bool) -> None:
    """`shell`: whether one stays. Removes Debian packages that nothing needs, and data that no program reads."""
    stanzas = parse_status((root / "var/lib/dpkg/status").read_text())
    files = {name: list(_files_of(root, name)) for name in stanzas}
    library = root / sysconfig.get_path("stdlib").lstrip("/")
    # Of a Python that is no Debian package, as in Python's own images, no package's list tells what it links.
    python = [Path(sys.executable).resolve(), *library.rglob("*.so")]
    kept = kept_packages(files, python, linked_libraries, shell)
    staying = {path for name in kept for path in files[name]}
    for name in sorted(stanzas.keys() - kept):
        _remove(path for path in files[name] if path not in staying)
        for info in (root / "var/lib/dpkg/info").glob(f"{name}[.:]*"):
            info.unlink()
    (root / "var/lib/dpkg/status").write_text("".join(stanzas[name] + "\n\n" for name in sorted(kept)))
    _remove(path for pattern in _SYSTEM_DATA for path in root.glob(pattern))
    _remove(path for path in root.glob("usr/share/doc/*/*") if path.name != "copyright")
    _remove(path for pattern in _LIBRARY_PARTS for path in library.glob(pattern))
    _remove(path for pattern in _BASE_PROGRAMS for path in (root / "usr/local/bin").glob(pattern))
    _remove_leftovers(root)
    compile_library(library)


def compile_library(library: Path) -> None:
    """Python's own library as byte code, where that is missing: Python's images have none, and a container with a
    read-only root would compile anew at each start, half a second of CPU for the agent.
    """
    compileall.compile_dir(library, quiet=1, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)


def slim_packages(site: Path) -> None:
    """Removes from a site-packages directory what `unneeded` names."""
    files = [path for path in site.rglob("*") if path.is_file()]
    _remove(path for path in files if unneeded(path.relative_to(site).as_posix()))


def unneeded(path: str) -> bool:
    """Tells whether a file of site-packages, by its path there, is needed by no program of ours."""
    return bool(_DEVELOPMENT.search(path) or _GENERATED.search(path))


def parse_status(text: str) -> dict[str, str]:
    """Stanzas of dpkg's status file by package name, of installed packages only."""
    stanzas = {}
    for stanza in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Status", "").endswith(" installed"):
            stanzas[fields["Package"]] = stanza
    return stanzas


def kept_packages(
    files: Mapping[str, Collection[Path]], others: Iterable[Path], linked: Linked, shell: bool = True
) -> set[str]:
    """Names from `files` (package to its files) that stay: those in KEPT, and whose libraries they or `others` link.

    `others`: programs and libraries that stay and are of no package. `shell`: those in SHELL stay too.
    """
    owners = {path: name for name, paths in files.items() for path in paths}

    def linked_by(paths: Iterable[Path]) -> set[str]:
        return {owners[library] for path in paths for library in linked(path) if library in owners}

    kept: set[str] = set()
    newly_linked = {name for name in files if KEPT.fullmatch(name) or (shell and SHELL.fullmatch(name))} | linked_by(
        others
    )
    while new := newly_linked - kept:
        kept |= new
        newly_linked = linked_by(path for name in new for path in files[name])
    return kept


def linked_libraries(path: Path) -> set[Path]:
    """The shared libraries that the dynamic linker would load for this file; none where it is no ELF file."""
    if path.is_symlink() or not path.is_file() or not _is_elf(path):
        return set()
    result = subprocess.run(["ldd", str(path)], capture_output=True, text=True, timeout=30)
    paths = re.findall(r"(?:=> |^\s+)(/\S+) \(0x", result.stdout, re.MULTILINE)
    return {place for name in paths for place in (_canonical(Path(name)), Path(name).resolve())}


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _files_of(root: Path, package: str) -> Iterator[Path]:
    """Files and links of a package, not its directories. dpkg lists /bin/x even where /bin is a link to /usr/bin."""
    for listing in (root / "var/lib/dpkg/info").glob(f"{package}*.list"):
        if listing.name.removesuffix(".list").split(":")[0] != package:
            continue
        for line in listing.read_text().splitlines():
            path = _canonical(root / line.lstrip("/"))
            if path.is_symlink() or path.is_file():
                yield path


def _canonical(path: Path) -> Path:
    return path.parent.resolve() / path.name


def _remove(paths: Iterable[Path]) -> None:
    for path in list(paths):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _remove_leftovers(root: Path) -> None:
    """Byte code without a source, links to nothing, and directories that have become empty."""
    for top in ("etc", "usr", "var"):
        for path in sorted((root / top).rglob("*"), reverse=True):
            source = path.parent.parent / (path.name.split(".")[0] + ".py")
            stale = path.parent.name == "__pycache__" and path.suffix == ".pyc" and not source.exists()
            if stale or (path.is_symlink() and not path.exists()):
                path.unlink()
            elif path.is_dir() and not path.is_symlink() and top == "usr" and not any(path.iterdir()):
                path.rmdir()


if __name__ == "__main__":
    main(sys.argv[1:])
