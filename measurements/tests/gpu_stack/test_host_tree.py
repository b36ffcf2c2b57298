"""The files of a machine for its clients' image: links are kept, the driver's files are not."""

import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from measurements.gpu.stack import host_image, oci_archive, tools
from measurements.gpu.stack.host_tree import Tree, is_of_driver, requirement_name


@pytest.mark.parametrize(
    ("path", "driver"),
    [
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04", True),
        ("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", True),
        ("/usr/local/nvidia/lib64/libnvidia-allocator.so.1", True),
        ("/opt/venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcudart.so.13", False),
        ("/usr/local/cuda/lib64/libnvrtc.so.13", False),
    ],
)
def test_the_drivers_files_are_distinguished_from_those_of_the_tool_kit(path: str, driver: bool) -> None:
    assert is_of_driver(path) is driver


def test_a_file_comes_with_every_link_on_the_way_to_it(tmp_path: Path) -> None:
    real = tmp_path / "python-3.12" / "bin"
    real.mkdir(parents=True)
    (real / "python3.12").write_text("")
    (real / "python3").symlink_to("python3.12")
    (tmp_path / "current").symlink_to(tmp_path / "python-3.12")
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "python").symlink_to("../current/bin/python3")
    tree = Tree()
    tree.add(tmp_path / "venv" / "python")
    assert tree.files == {str(real / "python3.12"): real / "python3.12"}
    assert tree.links == {
        str(tmp_path / "venv" / "python"): "../current/bin/python3",
        str(tmp_path / "current"): str(tmp_path / "python-3.12"),
        str(real / "python3"): "python3.12",
    }


def test_links_to_nothing_or_in_circles_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "dangling").symlink_to("nothing")
    tree = Tree()
    for name in ("circle", "dangling", "missing"):
        tree.add(tmp_path / name)
    assert tree.files == {}


@pytest.mark.parametrize(
    ("requirement", "name"),
    [
        ("numpy<2.6,>=2.0", "numpy"),
        ("cuda-pathfinder>=1.3.3 ; python_version >= '3.10'", "cuda-pathfinder"),
        ('scipy>=1.14; extra == "all"', ""),
    ],
)
def test_a_requirement_of_an_extra_is_not_required(requirement: str, name: str) -> None:
    assert requirement_name(requirement) == name


def test_libraries_that_ldd_did_not_find_are_left_out() -> None:
    output = """\tlinux-vdso.so.1 (0x00007f)
\tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007fa)
\tlibcuda.so.1 => not found
\t/lib64/ld-linux-x86-64.so.2 (0x00007fb)
"""
    assert tools.libraries_found(output) == {
        Path("/lib/x86_64-linux-gnu/libz.so.1"),
        Path("/lib64/ld-linux-x86-64.so.2"),
    }


def test_files_that_only_root_may_read_are_readable_for_all_in_the_image(tmp_path: Path) -> None:
    secret = tmp_path / "root" / "python"
    secret.parent.mkdir(mode=0o700)
    secret.write_text("#!")
    secret.chmod(0o700)
    layer = tmp_path / "layer.tar"
    host_image.write_layer(layer, Tree({"/root/python": secret}, {"/lib": "usr/lib"}), {"opt/bin/made": b"#!"})
    with tarfile.open(layer) as tar:
        modes = {member.name: member.mode for member in tar}
        assert (modes["root"], modes["root/python"], modes["tmp"]) == (0o755, 0o755, 0o1777)
        assert modes["opt/bin/made"] == 0o755
        assert tar.getmember("lib").linkname == "usr/lib"
        assert len(modes) == len(tar.getnames()), "each path once"
        uids = {member.uid for member in tar}
    assert uids == {0}


def test_a_compressed_image_is_written_with_plain_layers(tmp_path: Path) -> None:
    content = os.urandom(1000)
    source, plain = tmp_path / "source.tar", tmp_path / "plain.tar"
    compressed_image(source, gzip.compress(content), {"config": {"User": "5"}})
    oci_archive.uncompressed(source, plain, "localhost/b:2", tmp_path)
    with tarfile.open(plain) as tar:
        [described] = read(tar, "index.json")["manifests"]
        manifest = read(tar, blob(described))
        config = read(tar, blob(manifest["config"]))
        [layer] = manifest["layers"]
        file = tar.extractfile(blob(layer))
        assert file is not None
        assert file.read() == content
    assert layer["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert layer["mediaType"] == "application/vnd.oci.image.layer.v1.tar"
    assert described["annotations"] == {"io.containerd.image.name": "localhost/b:2"}
    assert (config["config"], config["rootfs"]["diff_ids"]) == ({"User": "5"}, [layer["digest"]])


def compressed_image(archive: Path, layer: bytes, config: dict[str, Any]) -> None:
    """An image as `buildah push` writes it."""
    media = "application/vnd.oci.image."
    blobs: dict[str, bytes] = {}

    def described(kind: str, content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": media + kind, "digest": f"sha256:{digest}", "size": len(content)}

    layers = [described("layer.v1.tar+gzip", layer)]
    manifest = {"config": described("config.v1+json", json.dumps(config).encode()), "layers": layers}
    index = {"manifests": [described("manifest.v1+json", json.dumps(manifest).encode())]}
    with tarfile.open(archive, "w") as tar:
        for path, content in {**blobs, "index.json": json.dumps(index).encode()}.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def read(tar: tarfile.TarFile, path: str) -> dict[str, Any]:
    file = tar.extractfile(path)
    assert file is not None
    content: dict[str, Any] = json.load(file)
    return content


def blob(described: dict[str, Any]) -> str:
    return "blobs/sha256/" + described["digest"].removeprefix("sha256:")


def test_only_libraries_of_a_tool_kit_have_to_be_searched_for(tmp_path: Path) -> None:
    """The loader knows the system's directories, and CuPy where its own packages are."""
    paths = [
        "/usr/local/cuda-13.0/lib64/libnvrtc.so.13",
        "/opt/venv/lib/python3.12/site-packages/nvidia/cuda/lib/libcudart.so.13",
        "/usr/lib/x86_64-linux-gnu/libz.so.1",
    ]
    config = host_image.configuration(Tree(dict.fromkeys(paths, tmp_path)))["config"]
    assert "LD_LIBRARY_PATH=/usr/local/cuda-13.0/lib64" in config["Env"]
