"""The places of the NVIDIA driver's libraries, executables and device nodes on this node.

Guarantees: every path exists below the driver root, with symbolic links followed as a process with that root would.
Does not check that libraries and kernel module have the same version: NVML does, and reports it.
"""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from gpushare.process.bounded_read import read_start

LIBRARY_DIRS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/lib/nvidia",
    "/usr/lib",
    "/usr/local/lib",  # Talos
    "/opt/nvidia/current/usr/lib64",  # Flatcar
    "/lib64",  # Container-Optimized OS, below the driver root /home/kubernetes/bin/nvidia
)
"""Searched in this order; the first directory with libcuda.so.1 is the driver's."""

EXECUTABLE_DIRS = ("/usr/bin", "/usr/local/nvidia/bin", "/opt/bin", "/usr/sbin", "/usr/local/bin", "/bin")
EXECUTABLES = ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
CONTROL_DEVICES = ("nvidiactl", "nvidia-uvm")
ELF = b"\x7fELF"
TOOLS = ("nvidia-smi",)
"""Programs for every container with a GPU or a part of one."""
SERVER_DEVICES = (*CONTROL_DEVICES, "nvidia-uvm-tools")

LIBRARIES = (
    # compute: CUDA, what it opens by name, such as the JIT compilers, and OpenCL
    "libcuda.so*",
    "libcudadebugger.so*",
    "libnvidia-ptxjitcompiler.so*",
    "libnvidia-nvvm*.so*",
    "libnvidia-gpucomp.so*",
    "libnvidia-pkcs11*.so*",
    "libnvidia-opencl.so*",
    "libnvidia-compiler.so*",
    "libnvidia-allocator.so*",
    "libnvidia-fatbinaryloader.so*",
    # utility: NVML
    "libnvidia-ml.so*",
    "libnvidia-cfg.so*",
    # video: decoding, encoding, optical flow
    "libnvcuvid.so*",
    "libnvidia-encode.so*",
    "libnvidia-opticalflow.so*",
    "libvdpau_nvidia.so*",
)
"""What NVIDIA's container toolkit gives for the capabilities `compute`, `utility` and `video`. Images ask for these by
NVIDIA_DRIVER_CAPABILITIES, which a CDI spec does not know.
"""

LINK_HOPS = 40
"""Linux itself follows so many symbolic links."""

Listing = Mapping[str, Mapping[str, str]]
"""Directory -> {entry: the file that it leads to}, paths as seen inside the driver root."""


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """`libraries`, `executables` and `tools`: file name -> path on the host; `devices`: directory of the device nodes
    there; `missing`: those of CONTROL_DEVICES that are not in it.
    """

    libraries: Mapping[str, str]
    executables: Mapping[str, str]
    devices: str = "/dev"
    tools: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()


def choose(listing: Listing, root: str, devices: str = "/dev") -> DriverFiles:
    """The driver among the files of `listing`. Pure. `root`: the driver root as the host names it.

    No libcuda.so.1: the result has no libraries, and no error is raised.
    """
    libraries: Mapping[str, str] = next(
        (listing[folder] for folder in LIBRARY_DIRS if "libcuda.so.1" in listing.get(folder, {})), {}
    )
    programs = {
        name: _on_host(root, listing[folder][name])
        for name in (*EXECUTABLES, *TOOLS)
        for folder in reversed(EXECUTABLE_DIRS)
        if name in listing.get(folder, {})
    }
    return DriverFiles(
        libraries={
            name: _on_host(root, path)
            for name, path in sorted(libraries.items())
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in LIBRARIES)
        },
        executables={name: path for name, path in programs.items() if name in EXECUTABLES},
        devices=devices,
        tools={name: path for name, path in programs.items() if name in TOOLS},
    )


def find(root: str, mount: Path, host_devices: Path = Path("/dev")) -> DriverFiles:
    """Reads the driver root: this process sees it at `mount`, the host at `root`; and the host's /dev at
    `host_devices`.
    """
    listing = {folder: _entries(mount, folder, LIBRARIES) for folder in LIBRARY_DIRS}
    listing |= {folder: _programs(mount, folder) for folder in EXECUTABLE_DIRS}
    own_devices = root != "/" and (mount / "dev/nvidiactl").exists()
    found = choose(listing, root, devices=_on_host(root, "/dev") if own_devices else "/dev")
    return replace(found, missing=_missing(mount / "dev" if own_devices else host_devices))


def _missing(devices: Path) -> tuple[str, ...]:
    """Nothing where this process may not look."""
    try:
        present = {entry.name for entry in devices.iterdir()}
    except OSError:
        return ()
    return tuple(name for name in CONTROL_DEVICES if name not in present)


def nvml_library(mount: Path) -> Path | None:
    """Path of libnvidia-ml.so.1 for this process; None: the root has no driver."""
    for folder in LIBRARY_DIRS:
        path = resolve(mount, f"{folder}/libnvidia-ml.so.1")
        if path is not None:
            return mount / path.lstrip("/")
    return None


def control_program_dir(mount: Path) -> Path | None:
    """Directory from which this process can run nvidia-cuda-mps-control; None: the root has none."""
    for folder in EXECUTABLE_DIRS:
        path = resolve(mount, f"{folder}/{EXECUTABLES[0]}")
        if path is not None and _is_program(mount / path.lstrip("/")):
            return (mount / path.lstrip("/")).parent
    return None


def resolve(mount: Path, path: str) -> str | None:
    """The file that an absolute `path` inside the root leads to; None: there is none.

    As for a process with that root: an absolute link starts at the root, and `..` cannot leave it.
    """
    pending = list(reversed(PurePosixPath(path).parts[1:]))
    reached: list[str] = []
    hops = 0
    while pending:
        part = pending.pop()
        if part == "..":
            reached = reached[:-1]
            continue
        here = mount.joinpath(*reached, part)
        if not here.is_symlink():
            reached.append(part)
            continue
        hops += 1
        if hops > LINK_HOPS:
            return None
        target = here.readlink().as_posix()
        if target.startswith("/"):
            reached = []
        pending += reversed([piece for piece in PurePosixPath(target).parts if piece != "/"])
    return "/" + "/".join(reached) if mount.joinpath(*reached).exists() else None


def _entries(mount: Path, folder: str, patterns: tuple[str, ...]) -> dict[str, str]:
    real = resolve(mount, folder)
    if real is None:
        return {}
    files = {}
    for entry in (mount / real.lstrip("/")).iterdir():
        if any(fnmatch.fnmatchcase(entry.name, pattern) for pattern in patterns):
            path = resolve(mount, f"{folder}/{entry.name}")
            if path is not None:
                files[entry.name] = path
    return files


def _programs(mount: Path, folder: str) -> dict[str, str]:
    """Leaves out scripts: some installers wrap the driver's programs, and a container lacks the paths in a wrapper."""
    files = _entries(mount, folder, (*EXECUTABLES, *TOOLS))
    return {name: path for name, path in files.items() if _is_program(mount / path.lstrip("/"))}


def _is_program(path: Path) -> bool:
    try:
        return read_start(path, len(ELF)) == ELF
    except OSError:
        return False


def _on_host(root: str, path: str) -> str:
    return path if root == "/" else root.rstrip("/") + path
