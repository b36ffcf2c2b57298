"""Does sharing help real programs? `gpushare-workload compare` with those of workload/examples/frameworks/programs.

    python3 -m measurements.gpu.programs.compare OUT

Needs a GPU that nobody uses, nvidia-ml-py, nvidia-cuda-mps-control on PATH, and an interpreter with PyTorch,
torchvision, transformers and JAX (`--python`; default: this one). Each run loads its programs afresh and measures two
windows of 2 s: 19 to 30 s on an H100, 82 s for a part of four runs (measured). The most important parts come first.
What would exceed the budget is left out and named, for another call with `--parts`. Writes OUT/compare.tar.gz with a
JSON file and a picture of each part, and what was printed.

`--tiny` tries all of it on a machine without a GPU: tiny models on the CPU, on the simulated GPU, which has no times.
"""

import argparse
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from measurements.gpu import ROOT

PROGRAMS = ROOT / "workload/examples/frameworks/programs"
BUDGET_SECONDS = 530.0
LEAST_SECONDS = 80.0
"""A part that has less than this left is not begun."""
END_SECONDS = 45.0
MODES = ("time-slicing", "mps", "mps-capped")
FIGURES = ("--rate-json", "rate", "--latency-json", "latency_ms")
TIMES = ("--seconds", "2", "--windows", "2", "--warmup", "0.6", "--start-timeout", "60")
SHORT = ("--seconds", "1.5", "--windows", "1", "--warmup", "0", "--start-timeout", "60")


@dataclass(frozen=True, slots=True)
class Part:
    """`program`, and each of `beside`: a file of PROGRAMS with its arguments; `beside` is empty for copies of one
    program. `unit`: of which the rate is so many per second.
    """

    name: str
    title: str
    unit: str
    program: tuple[str, ...]
    copies: tuple[int, ...] = (4,)
    beside: tuple[tuple[str, ...], ...] = ()


PARTS = (
    Part("yolos", "YOLOS-small, float16, one image at a time", "images", ("yolos.py",), (4, 7)),
    Part("resnet-infer", "ResNet-50 inference, float16, batch 8", "images", ("resnet.py",)),
    Part("gpt-medium", "GPT, 355 million parameters", "tokens", ("gpt.py", "--size", "medium")),
    Part(
        "yolos-beside-resnet-train", "YOLOS-small beside ResNet-50 training", "images of each", ("yolos.py",),
        beside=(("resnet.py", "--train", "--batch", "32"),),
    ),
    Part(
        "yolos-beside-resnet-train-and-preprocess", "YOLOS-small beside ResNet-50 training and image preparation",
        "images of each", ("yolos.py",), beside=(("resnet.py", "--train", "--batch", "32"), ("preprocess.py",)),
    ),
    Part(
        "decode-medium", "GPT, 355 million, each token a CUDA graph", "tokens", ("decode.py", "--size", "medium"),
    ),
    Part(
        "decode-1.3b", "GPT, 1.3 billion, each token a CUDA graph", "tokens", ("decode.py", "--size", "1.3b"),
    ),
    Part("bert", "BERT-base embedding, batch 16", "texts", ("bert.py",)),
    Part("bert-graph", "BERT-base embedding, a text as a CUDA graph", "texts", ("bert.py", "--batch", "1", "--graph")),
    Part("gpt-train", "GPT training, 355 million parameters", "sequences", ("gpt.py", "--train")),
    Part("gpt-1.3b", "GPT, 1.3 billion parameters", "tokens", ("gpt.py", "--size", "1.3b")),
    Part("preprocess", "Images cropped by the CPU, resized by the GPU", "images", ("preprocess.py",)),
    Part(
        "resnet-train", "ResNet-50 training, batch 32", "images", ("resnet.py", "--train", "--batch", "32"),
    ),
    Part("jax-train", "A training step in JAX", "rows", ("jax_train.py",)),
    Part("kmeans", "k-means, 500,000 points of 64 features, 128 clusters", "points", ("kmeans.py",)),
    Part("batched-yolos", "YOLOS-small, 8 images at a time", "images", ("yolos.py", "--batch", "8")),
    Part("batched-bert", "BERT-base embedding, batch 16, as a CUDA graph", "texts", ("bert.py", "--graph")),
    Part("batched-resnet-infer", "ResNet-50 inference, batch 64", "images", ("resnet.py", "--batch", "64")),
)  # fmt: skip


def command(part: Part, options: argparse.Namespace, results: Path) -> list[str]:
    """The call of `compare` for one part."""
    python, model = options.python, ("--tiny", "--device", "cpu") if options.tiny else ()
    flags = [*FIGURES, *(SHORT if options.tiny else TIMES), *_files(part, results), "--modes", *options.modes]
    flags += ["--repeats", str(options.repeats)]
    for file, *given in part.beside:
        flags += ["--beside", " ".join([python, str(PROGRAMS / file), *given, *model])]
    if not part.beside:
        flags += ["--copies", *map(str, options.copies or part.copies)]
    program = [python, str(PROGRAMS / part.program[0]), *part.program[1:], *model]
    return [sys.executable, "-m", "gpushare_workload.cli", "compare", *flags, "--", *program]


def _files(part: Part, results: Path) -> list[str]:
    return ["--json", str(results / f"{part.name}.json"), "--png", str(results / f"{part.name}.png")]


def run(part: Part, options: argparse.Namespace, results: Path, seconds: float) -> int:
    """The exit code; the part is asked to end when its time is over, and keeps what it has measured."""
    with (results / f"{part.name}.txt").open("w") as log:
        process = subprocess.Popen(command(part, options, results), stdout=log, stderr=log)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            try:
                return process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                return process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the programs")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--parts", nargs="+", choices=[part.name for part in PARTS])
    parser.add_argument("--copies", nargs="+", type=int, default=(), help="instead of each part's own numbers")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each case (%(default)s)")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS, help="seconds (%(default)s)")
    options = parser.parse_args()
    end, failed = time.monotonic() + options.budget, []
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder)
        for part in PARTS:
            if options.parts and part.name not in options.parts:
                continue
            left = end - time.monotonic()
            if left < LEAST_SECONDS:
                print(f"{part.name}: left out, the budget is spent", flush=True)
                failed.append(part.name)
                continue
            began = time.monotonic()
            code = run(part, options, results, left)
            print(f"{part.name}: exit code {code}, {time.monotonic() - began:.0f} s", flush=True)
            print((results / f"{part.name}.txt").read_text()[-2500:], flush=True)
            failed += [part.name] if code else []
        with tarfile.open(options.out / "compare.tar.gz", "w:gz") as packed:
            packed.add(results, arcname="compare")
    print(f"without a complete result: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
