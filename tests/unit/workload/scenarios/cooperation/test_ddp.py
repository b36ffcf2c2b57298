"""ddp: what NCCL cannot do is refused before it could hang, and several ranks train one model."""

import argparse
import json
import math
from importlib.util import find_spec
from io import StringIO
from typing import Any

import pytest

from gpushare_workload.backend.interface import UnsupportedError
from gpushare_workload.events import JsonLines
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.scenarios.cooperation import ddp, training

pytestmark = pytest.mark.usefixtures("nothing_left_behind")
OPTIONS: dict[str, Any] = {
    "backend": "numpy", "seed": 1, "ranks": None, "device": None, "steps": 5, "warmup": 2, "repeats": 2, "batch": 8,
    "width": 16,
}  # fmt: skip


def run(**options: Any) -> dict[str, Any]:
    out = StringIO()
    ddp.run(argparse.Namespace(**OPTIONS | options), JsonLines("ddp", out), Stop())
    line: dict[str, Any] = json.loads(out.getvalue())
    return line


def test_without_pytorch_the_error_says_how_to_get_it() -> None:
    with pytest.raises(UnsupportedError, match=r"pip install 'gpushare\[torch\]', or use an image .* workload-torch"):
        training.find_torch(lambda _: None)


def test_two_ranks_on_one_gpu_are_named_with_the_gpu_and_what_to_do() -> None:
    with pytest.raises(UnsupportedError, match=r"ranks 0 and 2 are both on GPU-a: NCCL takes one .* Use --ranks 2,"):
        training.check_one_rank_per_gpu(["GPU-a", "GPU-b", "GPU-a"])


def test_a_rank_on_each_gpu_is_fine() -> None:
    training.check_one_rank_per_gpu(["GPU-a", "GPU-b"])


@pytest.mark.parametrize(("name", "value"), [("ranks", 0), ("steps", 0), ("batch", 0), ("width", 0), ("repeats", 0)])
def test_a_number_below_its_bound_names_its_option(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"--{name} 0: must be at least 1"):
        run(**{name: value})


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed: the extra `torch`")
@pytest.mark.parametrize("ranks", [1, 3])
def test_ranks_over_gloo_train_the_model_that_one_process_trains(ranks: int) -> None:
    line = run(ranks=ranks)
    assert line["devices"] == [f"cpu of rank {index}" for index in range(ranks)]
    assert line["difference_from_one_process"] <= training.TOLERANCE
    assert all(math.isfinite(loss) for loss in line["losses"])


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed: the extra `torch`")
def test_without_a_gpu_cuda_is_refused_instead_of_falling_back() -> None:
    with pytest.raises(UnsupportedError, match="PyTorch sees no GPU"):
        run(device="cuda", ranks=1)
