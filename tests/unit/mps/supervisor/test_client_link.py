"""The link by which clients reach the daemon's current socket."""

from pathlib import Path

import pytest

from gpushare.mps.layout import GpuDir
from gpushare.mps.supervisor import client_link


@pytest.fixture
def gpu(tmp_path: Path) -> GpuDir:
    directory = GpuDir(tmp_path / "GPU-1")
    directory.pipe.mkdir(parents=True)
    return directory


def test_a_link_follows_the_daemon_s_current_socket(gpu: GpuDir) -> None:
    gpu.control.write_text("first")
    client_link.renew(gpu, "inference")
    assert client_link.is_current(gpu)
    gpu.control.unlink()
    gpu.control.write_text("second")
    assert not client_link.is_current(gpu)
    assert client_link.exists(gpu)
    client_link.renew(gpu, "inference")
    assert client_link.is_current(gpu)
    assert {entry.name for entry in gpu.client.iterdir()} == {"control", "share"}
    client_link.remove(gpu)
    assert not client_link.exists(gpu)


def test_a_renewal_that_fails_leaves_the_old_link(gpu: GpuDir) -> None:
    gpu.control.write_text("first")
    client_link.renew(gpu, "inference")
    gpu.control.unlink()
    with pytest.raises(FileNotFoundError):
        client_link.renew(gpu, "inference")
    assert gpu.client_control.read_text() == "first"
