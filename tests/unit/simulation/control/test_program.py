"""The control program is started every few seconds, so its start-up has to be short."""

import os
import subprocess
import sys

from gpushare import simulation


def test_the_executables_are_executable_and_start_without_slow_modules(tmp_path):
    control = simulation.bin_dir() / "nvidia-cuda-mps-control"
    assert os.access(control, os.X_OK)
    assert os.access(simulation.bin_dir() / "nvidia-cuda-mps-server", os.X_OK)
    result = subprocess.run(
        [sys.executable, "-SEs", "-X", "importtime", control],
        env={"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    imported = {line.rsplit("|", 1)[-1].strip() for line in result.stderr.splitlines()}
    assert "gpushare.simulation.control.program" in imported
    assert not imported & {"socket", "json", "re", "pathlib", "subprocess", "pydantic"}
