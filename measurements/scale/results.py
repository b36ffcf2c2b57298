"""What the scripts here write: figures, and the machine that they come from, as JSON."""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localcluster.paths import REPOSITORY

_OURS = {"gpushare", "pip", "setuptools"}
_PACKAGES = """
import importlib.metadata, platform, re
print(platform.python_version())
for it in importlib.metadata.distributions():
    print(re.sub("[-_.]+", "-", it.metadata["Name"]).lower())
"""


def add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, help="a JSON file; standard output if left out")


def add_pythons(parser: argparse.ArgumentParser) -> None:
    """What is measured has the image's memory only with the image's packages: requirements/operator.lock, gpushare."""
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="that runs what is measured")
    parser.add_argument("--before-python", type=Path, help="that runs the commit before; default: --python")


def machine() -> dict[str, Any]:
    """`cores`: those that the script may use. `load`: processes that want a CPU, over the last minute; the script's own
    are among them.
    """
    return {"cores": len(os.sched_getaffinity(0)), "load": load(), "python": platform.python_version()}


def runs_on(python: Path) -> dict[str, Any]:
    """The Python that runs what is measured: `python`, its version, and `notOfTheImage`, the packages that it has and
    the image has not. kopf alone imports some of them where they are installed.
    """
    command = [str(python), "-c", _PACKAGES]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    version, *installed = done.stdout.split()
    lines = (REPOSITORY / "requirements" / "operator.lock").read_text().splitlines()
    of_the_image = {line.partition("==")[0] for line in lines if "==" in line}
    return {"python": version, "notOfTheImage": sorted(set(installed) - of_the_image - _OURS)}


def processor() -> str:
    model = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    return model.partition(":")[2].strip()


def load() -> float:
    return round(os.getloadavg()[0], 1)


def processor_ticks() -> tuple[int, int]:
    """(idle, all) of all cores since the machine started."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return fields[3] + fields[4], sum(fields)


def idle_percent(since: tuple[int, int]) -> int:
    """The part of all cores' time since `since`, an answer of processor_ticks, that nobody used."""
    idle, whole = processor_ticks()
    return round(100 * (idle - since[0]) / max(1, whole - since[1]))


def write(result: Mapping[str, Any], out: Path | None) -> None:
    write_text(json.dumps(result, indent=2), out)


def write_text(text: str, out: Path | None) -> None:
    if out is None:
        print(text, flush=True)
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text + "\n")
