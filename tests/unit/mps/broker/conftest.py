"""A GPU of which nothing is there but the directory that containers see."""

from pathlib import Path

import pytest

from gpushare.mps.layout import GpuDir


@pytest.fixture
def gpu(tmp_path: Path) -> GpuDir:
    gpu = GpuDir(tmp_path / "GPU-0")
    gpu.client.mkdir(parents=True)
    return gpu
