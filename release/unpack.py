"""The first module of the program kubectl-gpushare: unpacks it once, and starts it.

Guarantees: what is started is what is in the zip, since the folder is named after its digest, belongs to the user and
appears complete or not at all. Any Python 3 can read this file, to say which one is needed.
"""

import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

UNKNOWN = "digest-of-the-tree"
DIGEST = "digest-of-the-tree"
"""The digest of what is INSIDE; written by release.plugin."""
INSIDE = "inside"
OLDEST = (3, 11)


def folder() -> Path:
    """The folder where the program is unpacked for this Python; it may not exist yet."""
    cache = os.environ.get("XDG_CACHE_HOME")
    above = Path(cache) if cache else Path.home() / ".cache"
    return above / "kubectl-gpushare" / (DIGEST + "-" + str(sys.implementation.cache_tag))


def unpack(program: Path, into: Path) -> None:
    """Raises OSError."""
    into.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=str(into.parent)))
    try:
        with zipfile.ZipFile(str(program)) as archive:
            for name in archive.namelist():
                if name.startswith(INSIDE + "/") and is_of_this_python(name):
                    archive.extract(name, str(aside))
        (aside / INSIDE).rename(into)
    except OSError:
        if not into.is_dir():  # else another call was first
            raise
    finally:
        shutil.rmtree(str(aside), ignore_errors=True)


def is_of_this_python(name: str) -> bool:
    """Compiled modules are named after the Python that they are for."""
    tag = str(sys.implementation.cache_tag)
    return not name.endswith(".so") or "." + tag + "-" in name or ".abi3." in name


def has_compiled_code(into: Path) -> bool:
    return any(path.suffix == ".so" for path in (into / "pydantic_core").iterdir())


def main() -> "int | str":
    """The exit status, or why the program cannot be started."""
    if sys.version_info < OLDEST:
        return "error: kubectl gpushare needs Python 3.11 or newer, and python3 is " + sys.version.split()[0]
    program, into, only_once = Path(__file__).resolve().parent, folder(), ""
    try:
        if not into.is_dir():
            unpack(program, into)
        if into.stat().st_uid != os.getuid():
            return "error: " + str(into) + " belongs to somebody else: delete it, or set XDG_CACHE_HOME"
    except OSError:  # a home that cannot be written
        only_once = tempfile.mkdtemp(prefix="kubectl-gpushare-")
        into = Path(only_once) / INSIDE
        unpack(program, into)
    sys.path.insert(0, str(into))
    try:
        if not has_compiled_code(into):
            return "error: this kubectl-gpushare has no compiled code for Python " + sys.version.split()[0]
        from gpushare.kubectl.main import main as plugin

        return plugin()
    finally:
        if only_once:
            shutil.rmtree(only_once, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
