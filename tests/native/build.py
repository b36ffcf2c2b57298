"""Builds the front libraries, and a driver's libraries that stand in for NVIDIA's, as a container has them.

The stand-ins know what the fronts ask for, and little more. They show that a front is loaded in a driver's place,
what it changes and that all else passes; not that NVIDIA's libraries do as they do.
"""

import os
import shutil
import subprocess
from pathlib import Path

from localcluster.paths import REPOSITORY

SOURCES = Path(__file__).parent
LIBRARIES = {"libcuda.so.1": ("driver_cuda.c", "driver_streams.c"), "libnvidia-ml.so.1": ("driver_nvml.c",)}
GIB = 1 << 30


def compiler() -> str | None:
    return shutil.which(os.environ.get("CC", "cc"))


def fronts(directory: Path, *flags: str) -> Path:
    """`flags`: in the place of those that leave the C library out, such as a sanitizer's. Returns the directory."""
    environment = {**os.environ, "EXTRA": " ".join(flags)}
    run = [REPOSITORY / "native/build.sh", directory]
    subprocess.run(run, check=True, env=environment, timeout=120)
    return directory


def pre_stop(directory: Path, broker: Path) -> Path:
    """The program of preStop hooks; `broker`: the socket at which it looks for its attach broker."""
    environment = {**os.environ, "PROGRAM": f'-DBROKER="{broker}"'}
    subprocess.run([REPOSITORY / "native/build.sh", directory], check=True, env=environment, timeout=120)
    return directory / "pre-stop"


def driver(directory: Path, prefix: str = "") -> Path:
    """The stand-ins, each named `prefix` and its SONAME. Returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for soname, sources in LIBRARIES.items():
        # A call of the library to a function of its own stays within it: so it is seen what the front changes.
        others = (str(SOURCES / source) for source in sources[1:])
        flags = ("-shared", "-fPIC", "-pthread", "-Wl,-Bsymbolic", f"-Wl,-soname,{soname}", *others)
        _compile(SOURCES / sources[0], directory / f"{prefix}{soname}", *flags)
    return directory


def container(directory: Path, *flags: str) -> Path:
    """The directory of libraries of a container that sees its grant: fronts, and the driver under other names."""
    return driver(fronts(directory, *flags), "gpushare-")


def container_with_classes(directory: Path, *flags: str) -> Path:
    """The same of a container whose share has classes."""
    container(directory, *flags)
    shutil.copy(directory / "libcuda-classes.so.1", directory / "libcuda.so.1")
    return directory


def program(directory: Path, *flags: str, source: str = "program.c") -> Path:
    """A program, linked with the driver's library alone, as programs are where they are built."""
    library = driver(directory / "toolkit") / "libcuda.so.1"
    return _compile(SOURCES / source, directory / "program", *flags, "-pthread", str(library))


def fuzz_target(directory: Path, name: str) -> Path:
    """fuzz_`name`.c with sanitizers, as a program of (seed, number of random inputs); `make fuzz` has libFuzzer."""
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-D_DEFAULT_SOURCE")
    return _compile(SOURCES / f"fuzz_{name}.c", directory / name, *flags, str(SOURCES / "fuzz_main.c"))


def _compile(source: Path, result: Path, *flags: str) -> Path:
    flags = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", *flags)
    subprocess.run([compiler() or "cc", "-o", result, source, *flags], check=True, timeout=120)
    return result
