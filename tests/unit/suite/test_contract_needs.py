"""What the contract suite needs on a machine with a GPU: pytest, pydantic and nvidia-ml-py, as its page says."""

import subprocess
import sys
from pathlib import Path

import pytest

CONTRACT = Path(__file__).parents[2] / "contract"
NOT_THERE = ("kubernetes", "kopf", "aiohttp", "grpclib", "prometheus_client", "cryptography")


@pytest.mark.parametrize("module", sorted(path.stem for path in CONTRACT.glob("test_*.py")))
def test_it_imports_without_the_libraries_of_a_cluster(module: str) -> None:
    program = f"import sys; sys.modules.update(dict.fromkeys({NOT_THERE!r})); import tests.contract.{module}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
