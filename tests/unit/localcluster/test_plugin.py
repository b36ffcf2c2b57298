"""The plugin on the PATH of a local cluster."""

import subprocess
from pathlib import Path

from localcluster.stack import PLUGIN, put_plugin


def test_the_programs_that_kubectl_looks_for_are_put_there_and_run(tmp_path: Path) -> None:
    put_plugin(tmp_path / "bin")
    assert {path.name for path in (tmp_path / "bin").iterdir()} == set(PLUGIN)

    def run(name: str, *arguments: str) -> str:
        command = [tmp_path / "bin" / name, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    assert run("kubectl-gpushare", "--version").startswith("kubectl-gpushare ")
    assert run("kubectl_complete-gpushare", "chec").split() == ["check", ":4"]
