"""The program: what a user sees where it cannot do what he asks."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpushare.cli.kubectl import main as program


def test_without_a_cluster_it_says_so_and_fails(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "KUBERNETES_SERVICE_HOST"}
    done = subprocess.run(
        [sys.executable, "-m", "gpushare.cli.kubectl.main", "status"],
        env=environment | {"KUBECONFIG": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "\nerror: " in "\n" + done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_cannot_be_read_is_named(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        program.main(["plan", "/nowhere.yaml"])
    assert "cannot read /nowhere.yaml" in capsys.readouterr().err
