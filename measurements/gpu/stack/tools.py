"""Programs that the cluster needs and a bare machine may lack, each with its own libraries and loader.

A script with the tool's name starts it by its own loader with its own libraries, so it runs beside any libc.
"""

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from localcluster.errors import LocalClusterError

TOOLS = ("ip", "nft", "openssl", "nsenter")
CONFIGURATION = Path("/etc/ssl/openssl.cnf")
FOLDER = "tools"
_SCRIPT = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")/{folder}
{setting}exec "$here/{loader}" --library-path "$here" "$here/{program}" "$@"
"""
_FOUND = re.compile(r"(?:=> )?(/\S+) \(0x")


def gather(directory: Path) -> None:
    """Puts a script for each tool into `directory`, and the tools' files below it. Raises LocalClusterError."""
    folder = directory / FOLDER
    folder.mkdir(parents=True)
    for name in TOOLS:
        program = shutil.which(name)
        if program is None:
            raise LocalClusterError(
                f"there is no {name} to take along: install it, or `python3 -m localcluster packages`"
            )
        needed = libraries_of([Path(program)])
        for library in needed:
            shutil.copy(library, folder / library.name)
        shutil.copy(program, folder / f"{name}.program")
        [loader] = [file.name for file in needed if file.name.startswith("ld-")]
        script = directory / name
        setting = f'OPENSSL_CONF="$here/{CONFIGURATION.name}" ' if name == "openssl" else ""
        script.write_text(_SCRIPT.format(folder=FOLDER, setting=setting, loader=loader, program=f"{name}.program"))
        script.chmod(0o755)
    shutil.copy(CONFIGURATION, folder / CONFIGURATION.name)


def libraries_found(ldd: str) -> set[Path]:
    """The files in the output of ldd(1), without those that it did not find."""
    return {Path(path) for path in _FOUND.findall(ldd)}


def libraries_of(programs: Iterable[Path]) -> set[Path]:
    """The libraries of all these files, the loader included. A file that is not dynamic has none."""
    paths = [str(path) for path in programs]
    if not paths:
        return set()
    return libraries_found(subprocess.run(["ldd", *paths], capture_output=True, text=True, timeout=120).stdout)
