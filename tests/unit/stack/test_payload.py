"""What travels to a machine with a GPU: parts in any order, each checked, and the same files on the other side."""

import json
import lzma
from pathlib import Path

import pytest

from localcluster.errors import LocalClusterError
from tests.gpu.stack import payload


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine where nothing has arrived; parts are of 4 KiB, packed quickly."""
    monkeypatch.setattr(payload, "PART_BYTES", 4096)
    monkeypatch.setattr(payload, "FILTERS", [{"id": lzma.FILTER_LZMA2, "preset": 0}])
    monkeypatch.setattr(payload, "PARTS", tmp_path / "machine" / "parts")
    monkeypatch.setattr(payload, "CACHE", tmp_path / "machine" / "cache")
    return tmp_path / "machine"


def packed(out: Path, content: bytes) -> list[Path]:
    """The parts of a folder with a program and a link to it."""
    folder = out / "kube"
    entry = folder / "kube-0123"
    entry.mkdir(parents=True)
    (entry / "localkube").write_bytes(content)
    (entry / "localkube").chmod(0o755)
    (entry / "kubectl").symlink_to("localkube")
    payload._slice([payload._compress(folder)], out)
    return sorted(out.glob("part-*"))


def incompressible(length: int) -> bytes:
    return bytes((number * number * 31 + number // 7) % 251 for number in range(length))


def test_with_the_last_part_everything_is_there_as_it_was(tmp_path: Path, machine: Path) -> None:
    content = incompressible(30_000)
    parts = packed(tmp_path / "out", content)
    assert len(parts) > 1
    first, *others = reversed(parts)
    assert payload.unpack([first]) == [part.name for part in parts if part != first]
    assert not (machine / "cache").exists()
    assert payload.unpack(others) == []
    entry = machine / "cache" / "kube-0123"
    assert (entry / "kubectl").read_bytes() == content
    assert (entry / "kubectl").readlink() == Path("localkube")
    assert (entry / "localkube").stat().st_mode & 0o111
    assert payload.unpack([first]) == [], "a part that comes again changes nothing"


def test_a_slice_that_was_damaged_on_its_way_is_refused(tmp_path: Path, machine: Path) -> None:
    [part, *_] = packed(tmp_path / "out", incompressible(30_000))
    (part / payload.SLICE).write_bytes(b"cut")
    with pytest.raises(LocalClusterError, match="send it again"):
        payload.unpack([part])


def test_parts_of_a_newer_packing_replace_what_was_unpacked(tmp_path: Path, machine: Path) -> None:
    payload.unpack(packed(tmp_path / "old", incompressible(30_000)))
    newer = packed(tmp_path / "new", b"newer")
    assert payload.unpack(newer) == []
    assert (machine / "cache" / "kube-0123" / "localkube").read_bytes() == b"newer"
    assert json.loads((machine / "parts" / payload.LISTING).read_text()).keys() == {part.name for part in newer}
