"""The real programs that `compare` is measured with: each prints figures, and the GPU script runs each."""

import json
import subprocess
import sys
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path

import pytest

from gpushare.kubectl.rules.trial.printed import FigureReader, PrintedFigures
from gpushare_workload import cli
from gpushare_workload.compare.options import request_of
from localcluster.paths import REPOSITORY
from measurements.gpu.programs import compare

PROGRAMS = REPOSITORY / "workload/examples/frameworks/programs"
RUN = {
    "yolos.py": ("torch", "transformers"),
    "resnet.py": ("torch", "torchvision"),
    "resnet.py --train": ("torch", "torchvision"),
    "yolos.py --batch 2": ("torch", "transformers"),
    "gpt.py": ("torch", "transformers"),
    "gpt.py --train": ("torch", "transformers"),
    "decode.py": ("torch",),
    "bert.py": ("torch", "transformers"),
    "bert.py --batch 1 --graph": ("torch", "transformers"),
    "jax_train.py": ("jax",),
    "preprocess.py": ("torch",),
    "kmeans.py": ("torch",),
}
SECONDS = 100.0


@pytest.mark.parametrize("program", [*RUN, "gpt.py --size 1.3b", "decode.py --size 1.3b"])
def test_a_program_explains_itself_without_its_framework(program: str) -> None:
    name, *options = program.split()
    command = [sys.executable, str(PROGRAMS / name), *options, "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    assert {"--device", "--tiny", "--seconds"} <= set(shown.split())


@pytest.mark.parametrize("program", list(RUN))
def test_a_program_prints_its_rate_and_latencies(program: str) -> None:
    if missing := [name for name in RUN[program] if find_spec(name) is None]:
        pytest.skip(f"needs {', '.join(missing)}")
    name, *options = program.split()
    command = [sys.executable, str(PROGRAMS / name), *options, "--device", "cpu", "--tiny", "--seconds", "1"]
    out = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    check(out)


def test_the_loop_prints_lines_that_compare_reads(tmp_path: Path) -> None:
    program = "from loop import repeat\nrepeat('p', 'units', 5, lambda: None, seconds=0.7)\n"
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, str(tmp_path / "program.py")]
    environment = {"PYTHONPATH": str(PROGRAMS)}
    check(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment).stdout)


def test_an_open_loop_counts_from_the_arrival_of_what_waits(tmp_path: Path) -> None:
    """Of 1000 arrivals a second 100 are served, so the last to be served came in the first tenth."""
    program = "import time\nfrom loop import repeat\nrepeat('p', 'u', 2, lambda: time.sleep(0.01), seconds=1.2)\n"
    (tmp_path / "program.py").write_text(program)
    environment = {"PYTHONPATH": str(PROGRAMS), "OFFERED_RATE": "2000"}
    command = [sys.executable, str(tmp_path / "program.py")]
    out = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment).stdout
    latencies = [value for line in out.splitlines() for value in json.loads(line)["latency_ms"]]
    assert latencies[-1] > 600


def check(out: str) -> None:
    printed = PrintedFigures(FigureReader(field="rate"), latency=FigureReader(field="latency_ms"))
    figures = [printed.read(float(place), line) for place, line in enumerate(out.splitlines())]
    assert len(figures) >= 2
    assert all(line is not None and line.rates[0] > 0 and line.latencies for line in figures)


def test_every_part_of_the_gpu_script_compares_programs_that_exist(tmp_path: Path) -> None:
    for part in compare.PARTS:
        for tiny in (False, True):
            chosen = Namespace(python=sys.executable, tiny=tiny, copies=(), modes=compare.MODES, repeats=2)
            arguments = compare.command(part, chosen, tmp_path)[3:]
            request = request_of(cli.parser().parse_args(arguments))
            assert len(request.programs) == 1 + len(part.beside)
            assert request.plan.repeats == 2
            assert all(Path(program[1]).is_file() for program in request.programs)
    measured = {Path(name).name for part in compare.PARTS for name, *_ in (part.program, *part.beside)}
    assert measured == {program.split()[0] for program in RUN}
