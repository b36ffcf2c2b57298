"""An image is read from its archive as a container would see it."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from release.oci import ArchiveError, OciArchive


def packed(files: Mapping[str, bytes | str]) -> bytes:
    """A tar with these files; a text is a link's target."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def written(path: Path, *layers: Mapping[str, bytes | str]) -> OciArchive:
    """An OCI archive with these layers at `path`."""
    blobs: dict[str, bytes] = {}

    def stored(content: bytes) -> dict[str, object]:
        digest = "sha256:" + hashlib.sha256(content).hexdigest()
        blobs["blobs/" + digest.replace(":", "/")] = content
        return {"digest": digest, "size": len(content)}

    history = [{"created_by": f"step {number}"} for number, _ in enumerate(layers)]
    config = stored(json.dumps({"architecture": "amd64", "history": [{"empty_layer": True}, *history]}).encode())
    described = [stored(gzip.compress(packed(layer))) for layer in layers]
    manifest = stored(json.dumps({"config": config, "layers": described}).encode())
    path.write_bytes(packed({"index.json": json.dumps({"manifests": [manifest]}).encode(), **blobs}))
    return OciArchive(path)


@pytest.fixture
def archive(tmp_path: Path) -> OciArchive:
    first = {"./etc/a": b"old", "etc/b": b"b", "opt/x/one": b"1", "opt/x/two": b"22", "bin": "usr/bin"}
    return written(
        tmp_path / "image.tar", first, {"etc/a": b"newer", "etc/.wh.b": b"", "opt/.wh.x": b"", "opt/x/new": b"n"}
    )


def test_a_later_layer_replaces_and_removes(archive: OciArchive) -> None:
    assert [(file.path, file.layer, file.size) for file in archive.files()] == [
        ("bin", 0, 0),
        ("etc/a", 1, 5),
        ("opt/x/new", 1, 1),
    ]
    assert archive.read(lambda path: path.startswith("etc/")) == {"etc/a": b"newer"}


def test_an_opaque_directory_hides_what_earlier_layers_had_in_it_alone(tmp_path: Path) -> None:
    archive = written(tmp_path / "image.tar", {"d/old": b"1", "e/old": b"1"}, {"d/new": b"2", "d/.wh..wh..opq": b""})
    assert [file.path for file in archive.files()] == ["d/new", "e/old"]


def test_layers_have_their_instruction_and_links_their_target(archive: OciArchive) -> None:
    assert [layer.created_by for layer in archive.layers] == ["step 0", "step 1"]
    assert archive.architecture == "amd64"
    assert archive.compressed_bytes == sum(layer.compressed_bytes for layer in archive.layers) > 0
    assert archive.files()[0].target == "usr/bin"


def test_what_is_no_oci_archive_is_refused_by_name(tmp_path: Path) -> None:
    other = tmp_path / "other.tar"
    other.write_bytes(packed({"file": b""}))
    with pytest.raises(ArchiveError, match=r"other\.tar has no index\.json"):
        OciArchive(other)
    other.write_bytes(packed({"index.json": json.dumps({"manifests": []}).encode()}))
    with pytest.raises(ArchiveError, match="holds 0 images"):
        OciArchive(other)
