"""Builds peers from checkouts of their sources, and packs what a machine without network needs of them.

A checkout stays as it is; nothing of it enters this repository. NVIDIA's plugin has all its modules in its vendor tree,
so has its DRA driver. HAMi-core needs CUDA's headers, which NVIDIA publishes as wheels (nvidia-cuda-runtime,
nvidia-cuda-crt, nvidia-nvml-dev).
"""

import json
import lzma
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from localcluster.errors import LocalClusterError
from measurements.gpu.stack.payload import compress, extract
from measurements.gpu.stack.place import WORK

PLUGIN, DRA, HAMI = "nvidia-device-plugin", "nvidia-dra-driver", "hami-core"
PROGRAMS = ("nvidia-device-plugin", "mps-control-daemon", "config-manager")
CHART = "deployments/helm/nvidia-device-plugin"
DRA_PROGRAM = "gpu-kubelet-plugin"
DRA_CHART = "deployments/helm/dra-driver-nvidia-gpu"
DRA_FILES = {"templates/mps-control-daemon.tmpl.yaml": "templates", "hack/kubelet-plugin-prestart.sh": "usr/bin"}
"""What its image has besides, as its Dockerfile says: file of the checkout, folder of the image."""
LIBRARY = "libvgpu.so"
STUBS = {"cuda": "libcuda.so.1", "nvidia-ml": "libnvidia-ml.so.1"}
"""What HAMi's library is linked with, and finds with the driver later: option of the linker, name."""
HAMI_OPTIONS = ("DLSYM_HOOK_ENABLE", "MULTIPROCESS_LIMIT_ENABLE", "HOOK_MEMINFO_ENABLE", "HOOK_NVML_ENABLE")
HAMI_TYPE = "Debug"
"""HAMi's build type, as its own build.sh has it. In a build of another type its stand-ins for CUDA's functions are
hidden."""
HAMI_STANDS_IN_FOR = "cuMemAlloc_v2"
BUILD_SECONDS = 1800
ORIGIN = "origin.json"
FILTERS = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 3}]
"""Quick: these programs are a tenth of what travels."""


@dataclass(frozen=True)
class Origin:
    """The origin of the programs: what the checkout says of itself, and the compiler."""

    repository: str
    version: str
    commit: str
    compiler: str


def build(peer: str, source: Path, out: Path, cuda: Path | None) -> Path:
    """Returns the packed file. `cuda`: a folder with CUDA's headers below `include`.

    Raises LocalClusterError if `source` is no checkout of the peer, or with the compiler's words.
    """
    folder = out.resolve() / peer
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    origin = _MAKERS[peer](source.resolve(), folder, cuda)
    (folder / ORIGIN).write_text(json.dumps(asdict(origin), indent=2) + "\n")
    return compress(folder, FILTERS)


def unpacked(peer: str, out: Path) -> Path:
    """The peer's folder on the machine, in place of what an earlier build has left.

    Raises LocalClusterError if there is nothing to unpack.
    """
    packed, folder = out / f"{peer}.tar.xz", WORK / peer
    if not packed.exists():
        raise LocalClusterError(f"{packed} is not there: `measurements/peers/run build {peer} SOURCE {out}` makes it")
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(packed) as tar:
        extract(tar, folder, "data")
    return folder


def origin_of(folder: Path) -> dict[str, Any]:
    """The Origin of an unpacked folder, as JSON."""
    origin: dict[str, Any] = json.loads((folder / ORIGIN).read_text())
    return origin


def _plugin(source: Path, folder: Path, _: Path | None) -> Origin:
    _check(source / CHART / "Chart.yaml", "NVIDIA's k8s-device-plugin")
    _go_build(PROGRAMS, source, folder)
    shutil.copytree(source / CHART, folder / "chart")
    return _of_chart("NVIDIA/k8s-device-plugin", source, CHART)


def _dra(source: Path, folder: Path, _: Path | None) -> Origin:
    """Builds the DRA driver without the parts for compute domains and the webhook: they are off."""
    _check(source / DRA_CHART / "Chart.yaml", "NVIDIA's DRA driver for GPUs, of 0.4 or later")
    _go_build([DRA_PROGRAM], source, folder)
    shutil.copytree(source / DRA_CHART, folder / "chart")
    for name, target in DRA_FILES.items():
        (folder / "image" / target).mkdir(parents=True)
        shutil.copy(source / name, folder / "image" / target)
    return _of_chart("kubernetes-sigs/dra-driver-nvidia-gpu", source, DRA_CHART)


def _hami(source: Path, folder: Path, cuda: Path | None) -> Origin:
    """Its tests are left out: they need CUDA's compiler."""
    _check(source / "src" / "libvgpu.c", "HAMi-core")
    if cuda is None or not (cuda / "include" / "cuda.h").exists():
        raise LocalClusterError(f"HAMi-core needs CUDA's headers: {cuda} has no include/cuda.h; give it with --cuda")
    with tempfile.TemporaryDirectory() as name:
        copy, stubs = Path(name) / "source", Path(name) / "stubs"
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns(".git", "build"))
        (copy / "test" / "CMakeLists.txt").write_text("")
        stubs.mkdir()
        for option, soname in STUBS.items():
            library = ["-o", str(stubs / f"lib{option}.so"), "-x", "c", "/dev/null"]
            _run(["gcc", "-shared", f"-Wl,-soname,{soname}", *library], copy)
        options = [f"-D{name}=1" for name in HAMI_OPTIONS]
        linker = f"-DCMAKE_SHARED_LINKER_FLAGS=-L{stubs}"
        environment = {"CUDA_HOME": str(cuda.resolve())}
        _run(["cmake", "-B", "build", *options, f"-DCMAKE_BUILD_TYPE={HAMI_TYPE}", linker], copy, environment)
        _run(["cmake", "--build", "build", "--target", "vgpu"], copy, environment)
        shutil.copy(copy / "build" / LIBRARY, folder / LIBRARY)
    if HAMI_STANDS_IN_FOR not in _run(["nm", "--dynamic", "--defined-only", LIBRARY], folder).split():
        raise LocalClusterError(
            f"{LIBRARY} does not stand in for CUDA's {HAMI_STANDS_IN_FOR}: its limits would not hold"
        )
    commit = _commit(source)
    compiler = _run(["gcc", "--version"], source).splitlines()[0]
    return Origin("Project-HAMi/HAMi-core", f"commit {commit[:7]}", commit, compiler)


_MAKERS: Mapping[str, Callable[[Path, Path, Path | None], Origin]] = {PLUGIN: _plugin, DRA: _dra, HAMI: _hami}
PEERS = tuple(_MAKERS)


def _check(path: Path, what: str) -> None:
    if not path.exists():
        raise LocalClusterError(f"this is no checkout of {what}: {path} is missing")


def _go_build(programs: Sequence[str], source: Path, folder: Path) -> None:
    """NVML comes with the driver: what is linked with it finds it when it starts."""
    (folder / "bin").mkdir()
    options = ["-mod=vendor", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w"]
    packages = [f"./cmd/{name}" for name in programs]
    environment = {"CGO_LDFLAGS_ALLOW": "-Wl,--unresolved-symbols=ignore-in-object-files"}
    _run(["go", "build", *options, "-o", str(folder / "bin"), *packages], source, environment)


def _of_chart(repository: str, source: Path, chart: str) -> Origin:
    lines = (source / chart / "Chart.yaml").read_text().splitlines()
    version = next(line.split('"')[1] for line in lines if line.startswith("appVersion:"))
    return Origin(repository, version, _commit(source), _run(["go", "version"], source).strip())


def _commit(source: Path) -> str:
    return _run(["git", "rev-parse", "HEAD"], source).strip()


def _run(command: list[str], directory: Path, environment: Mapping[str, str] | None = None) -> str:
    merged = {**os.environ, **(environment or {})}
    try:
        done = subprocess.run(command, cwd=directory, env=merged, capture_output=True, text=True, timeout=BUILD_SECONDS)
    except FileNotFoundError as error:
        raise LocalClusterError(f"{command[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise LocalClusterError(
            f"{' '.join(command[:3])} … took longer than {BUILD_SECONDS} s in {directory}"
        ) from error
    if done.returncode != 0:
        raise LocalClusterError(f"{' '.join(command[:3])} … failed in {directory}: {done.stderr.strip()[-800:]}")
    return done.stdout
