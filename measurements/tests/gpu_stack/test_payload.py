"""Parts for a machine with a GPU: they arrive in any order, each is checked, and they give the same files there."""

import json
import lzma
from collections.abc import Iterable
from pathlib import Path

import pytest

from localcluster.errors import LocalClusterError
from measurements.gpu.stack import payload

PART_BYTES = 4096
QUICKLY = [{"id": lzma.FILTER_LZMA2, "preset": 0}]


class Machine:
    """A machine where nothing has arrived."""

    def __init__(self, directory: Path) -> None:
        self.kept = directory / "parts"
        self.cache = directory / "cache"

    def unpack(self, parts: Iterable[Path]) -> list[str]:
        return payload.unpack(parts, self.kept, self.cache)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


def packed(out: Path, content: bytes) -> list[Path]:
    """The parts of a folder with a program and a link to it."""
    folder = out / "kube"
    entry = folder / "kube-0123"
    entry.mkdir(parents=True)
    (entry / "localkube").write_bytes(content)
    (entry / "localkube").chmod(0o755)
    (entry / "kubectl").symlink_to("localkube")
    payload.cut([payload.compress(folder, QUICKLY)], out, PART_BYTES)
    return sorted(out.glob("part-*"))


def incompressible(length: int) -> bytes:
    return bytes((number * number * 31 + number // 7) % 251 for number in range(length))


def test_with_the_last_part_everything_is_there_as_it_was(tmp_path: Path, machine: Machine) -> None:
    content = incompressible(30_000)
    parts = packed(tmp_path / "out", content)
    assert len(parts) > 1
    first, *others = reversed(parts)
    assert machine.unpack([first]) == [part.name for part in parts if part != first]
    assert not machine.cache.exists()
    assert machine.unpack(others) == []
    entry = machine.cache / "kube-0123"
    assert (entry / "kubectl").read_bytes() == content
    assert (entry / "kubectl").readlink() == Path("localkube")
    assert (entry / "localkube").stat().st_mode & 0o111
    assert machine.unpack([first]) == [], "a part that comes again changes nothing"


def test_a_slice_that_was_damaged_on_its_way_is_refused(tmp_path: Path, machine: Machine) -> None:
    [part, *_] = packed(tmp_path / "out", incompressible(30_000))
    (part / payload.SLICE).write_bytes(b"cut")
    with pytest.raises(LocalClusterError, match="send it again"):
        machine.unpack([part])


def test_parts_of_a_newer_packing_replace_what_was_unpacked(tmp_path: Path, machine: Machine) -> None:
    machine.unpack(packed(tmp_path / "old", incompressible(30_000)))
    newer = packed(tmp_path / "new", b"newer")
    assert machine.unpack(newer) == []
    assert (machine.cache / "kube-0123" / "localkube").read_bytes() == b"newer"
    assert json.loads((machine.kept / payload.LISTING).read_text()).keys() == {part.name for part in newer}
