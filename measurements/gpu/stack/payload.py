"""Packs programs and the operator's image into parts that fit the transport, and unpacks them on the other side.

A part is a folder with one slice of the whole, and the list of all slices with their digests. Parts may arrive one by
one and in any order; with the last of them everything is unpacked. A part that arrives again changes nothing.
"""

import hashlib
import json
import lzma
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from localcluster.errors import LocalClusterError
from localcluster.images import buildah
from localcluster.paths import cache_root
from localcluster.programs.build import NVIDIA, Binaries, binaries, build_component
from measurements.gpu.stack import oci_archive, tools
from measurements.gpu.stack.place import CACHE, OPERATOR_ARCHIVE, OPERATOR_NAME, PARTS

PART_BYTES = 32 << 20
"""The transport takes 64 MiB, including the work tree."""
SLICE, LISTING = "slice", "parts.json"
FILTERS = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 9}]
BLOCK = 1 << 20


def pack(out: Path) -> dict[str, Any]:
    """Writes the parts below `out`. Returns the sizes in bytes. Builds only the operator's image.

    Raises LocalClusterError if Kubernetes has not been built.
    """
    programs = binaries(cache_root())
    build_component(NVIDIA, cache_root())
    if missing := [path.name for path in _entries(programs) if not path.exists()]:
        raise LocalClusterError(f"{', '.join(missing)} is not built: run `python3 -m localcluster build` first")
    image = buildah.build_images(cache_root())["operator"]
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=out) as name:
        scratch = Path(name)
        folders = _gather(programs, image, scratch)
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            packed = list(pool.map(compress, folders))
        sizes = {
            folder.name: {"bytes": _size(folder), "packed_bytes": item.stat().st_size}
            for folder, item in zip(folders, packed, strict=True)
        }
        parts = cut(packed, out)
    return {"items": sizes, "parts": parts}


def unpack(parts: Iterable[Path], kept: Path = PARTS, cache: Path = CACHE) -> list[str]:
    """Copies the parts to `kept`, and unpacks them to `cache` once all are there. Returns the names of missing parts.

    Raises LocalClusterError if a slice was damaged or belongs to another packing.
    """
    for part in parts:
        listing = json.loads((part / LISTING).read_text())
        digest = _digest(part / SLICE)
        if listing[part.name] != digest:
            raise LocalClusterError(f"{part}: its digest is {digest}, not {listing[part.name]}: send it again")
        kept.mkdir(parents=True, exist_ok=True)
        known = kept / LISTING
        if known.exists() and json.loads(known.read_text()) != listing:
            shutil.rmtree(kept)
            shutil.rmtree(cache, ignore_errors=True)
            kept.mkdir()
        known.write_text(json.dumps(listing))
        shutil.copy(part / SLICE, kept / part.name)
    if not (kept / LISTING).exists():
        raise LocalClusterError("no part has arrived yet")
    listing = json.loads((kept / LISTING).read_text())
    missing = [name for name in listing if not (kept / name).exists()]
    if not missing and not cache.exists():
        _unpack_all([kept / name for name in listing], cache)
    return missing


def _entries(programs: Binaries) -> tuple[Path, ...]:
    return programs.kube, programs.runtime, programs.helm, programs.pause, NVIDIA.entry(cache_root())


def _gather(programs: Binaries, image: buildah.Image, scratch: Path) -> list[Path]:
    """One folder for each item that is compressed separately, the largest first. Each holds entries of the cache."""
    folders = {name: scratch / name for name in ("operator", "kube", "runtime", "helm")}
    for folder in folders.values():
        folder.mkdir()
    for entry in _entries(programs):
        folder = folders.get(entry.name.rpartition("-")[0], folders["helm"])
        shutil.copytree(entry, folder / entry.name, symlinks=True)
    tools.gather(folders["runtime"] / programs.runtime.name)
    layers = scratch / "layers"
    layers.mkdir()
    oci_archive.uncompressed(Path(image.archive), folders["operator"] / OPERATOR_ARCHIVE.name, image.image, layers)
    shutil.rmtree(layers)
    (folders["operator"] / OPERATOR_NAME.name).write_text(image.image)
    return list(folders.values())


def compress(folder: Path, filters: Sequence[Mapping[str, int]] = FILTERS) -> Path:
    """Packs the entries of `folder` into `<folder>.tar.xz` beside it."""
    packed = folder.with_name(f"{folder.name}.tar.xz")
    with (
        lzma.open(packed, "wb", format=lzma.FORMAT_XZ, filters=list(filters)) as file,
        tarfile.open(fileobj=file, mode="w|") as tar,
    ):
        for entry in sorted(folder.iterdir()):
            tar.add(entry, entry.name)
    return packed


def cut(packed: list[Path], out: Path, part_bytes: int = PART_BYTES) -> dict[str, int]:
    """Writes the parts of `packed` below `out`, each of at most `part_bytes`. Returns their sizes in bytes."""
    whole = out / "whole.tar"
    with tarfile.open(whole, "w") as tar:
        for item in packed:
            tar.add(item, item.name)
    sizes: dict[str, int] = {}
    listing: dict[str, str] = {}
    with whole.open("rb") as file:
        while content := file.read(part_bytes):
            part = out / f"part-{len(sizes) + 1}"
            part.mkdir()
            (part / SLICE).write_bytes(content)
            sizes[part.name], listing[part.name] = len(content), hashlib.sha256(content).hexdigest()
    whole.unlink()
    for name in listing:
        (out / name / LISTING).write_text(json.dumps(listing))
    return sizes


def _unpack_all(slices: list[Path], cache: Path) -> None:
    """Unpacks into a directory aside and renames it at the end, so that the cache is complete or does not exist."""
    aside = cache.with_suffix(".new")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    whole = aside / "whole.tar"
    with whole.open("wb") as file:
        for item in slices:
            with item.open("rb") as content:
                shutil.copyfileobj(content, file, BLOCK)
    with tarfile.open(whole) as tar:
        names = tar.getnames()
        extract(tar, aside, "data")
    whole.unlink()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_decompress, [aside / name for name in names]))
    aside.rename(cache)


def extract(tar: tarfile.TarFile, directory: Path, only: str) -> None:
    """`only`: a filter of tarfile. Before Python 3.11.4 there are none."""
    options: dict[str, Any] = {"filter": only} if hasattr(tarfile, "data_filter") else {}
    tar.extractall(directory, **options)  # noqa: S202 - our own archive, whose digest was checked


def _decompress(packed: Path) -> None:
    with tarfile.open(packed) as tar:
        extract(tar, packed.parent, "tar")
    packed.unlink()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
