"""How long `kubectl gpushare` takes, command by command: seconds of the wall clock, and of CPU with all its processes.

    python -m measurements.scale.plugin --before COMMIT --out measurements/results/scale/plugin.json

etcd and kube-apiserver are real, on loopback ports; `--nodes` nodes of 8 GPUs, with an agent each, are objects, and one
server answers for all agents. The plugin is the single file that users install (`make kubectl`), of this work tree and
of the commit `--before`, with the local cluster's kubectl. Each command runs once unmeasured, and then `--repeats`
times, before and after in turn, so that both meet the same load of the machine. Python runs as it does without any
variable of its own, so with its byte code cached.

`cpuSeconds` are those of the plugin, of kubectl and of the shell between them; what the API server spends is not in it.
`loadBusyProcesses` is the machine's load average at the end of a command's runs: where it is above the cores, the wall
clock's seconds say more of the machine than of the plugin.
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import yaml

from gpushare.kube.client import Object
from measurements.scale import nodes as base
from measurements.scale import results
from measurements.scale.plugin import content
from measurements.scale.trees import trees
from tests.cluster.control_plane import ControlPlane, connected, programs

COMMAND_SECONDS = 120
SHARE = "share.yaml"
COMMANDS: dict[str, Sequence[str]] = {
    "status": ["status"],
    "top": ["top", "-A"],
    "why": ["why", content.POD, "-n", content.USERS],
    "describe share": ["describe", "share", "scale"],
    "describe node": ["describe", "node", base.name_of(0)],
    "describe pod": ["describe", "pod", content.POD, "-n", content.USERS],
    "events": ["events"],
    "plan": ["plan", SHARE],
    "check": ["check"],
}


def run(program: Path, arguments: Sequence[str], directory: Path, environment: dict[str, str]) -> tuple[float, float]:
    """(seconds of the wall clock, of CPU). RuntimeError where it failed; a problem that it found is none."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [sys.executable, str(program), *arguments], cwd=directory, env=environment, capture_output=True, text=True,
        timeout=COMMAND_SECONDS,
    )  # fmt: skip
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measured(
    plugins: dict[str, Path], command: str, repeats: int, directory: Path, environment: dict[str, str]
) -> Object:
    """The figures by plugin."""
    taken: dict[str, list[tuple[float, float]]] = {which: [] for which in plugins}
    for number in range(repeats + 1):
        for which, program in plugins.items():
            figures = run(program, COMMANDS[command], directory, environment)
            if number:
                taken[which].append(figures)
    return {
        which: {"wallSeconds": spread([run[0] for run in runs]), "cpuSeconds": spread([run[1] for run in runs])}
        for which, runs in taken.items()
    }


def spread(runs: Sequence[float]) -> Object:
    return {"median": round(median(runs), 3), "min": round(min(runs), 3), "max": round(max(runs), 3)}


def build(tree: Path, output: Path) -> Path:
    command = [sys.executable, "-m", "release.plugin", "--output", str(output)]
    environment = os.environ | {"PYTHONPATH": f"{tree}/operator:{tree}"}
    subprocess.run(command, cwd=tree, env=environment, check=True, stdout=sys.stderr, timeout=900)
    return output


async def fill(plane: ControlPlane, nodes: int, address: tuple[str, int]) -> None:
    kube = await connected(plane)
    try:
        await content.fill(kube, nodes, address)
    finally:
        await kube.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--command", action="append", choices=COMMANDS, help="these alone; default: all")
    parser.add_argument("--before", metavar="COMMIT", help="measure the plugin of this commit too")
    parser.add_argument("--programs", type=Path, metavar="DIRECTORY", help="keep both files there, and use them again")
    parser.add_argument("--out", type=Path, required=True, help="a JSON file; it grows command by command")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpushare-scale-") as name:
        measure(args, Path(name))


def built(args: argparse.Namespace, scratch: Path) -> dict[str, Path]:
    """The single files, by what they are of."""
    folder = args.programs or scratch
    kept = {which: folder / f"plugin-{which}" for which in (("before", "after") if args.before else ("after",))}
    if all(path.exists() for path in kept.values()):
        return kept
    with trees(args.before, scratch) as compared:
        return {which: build(tree, kept[which]) for which, tree in compared.items()}


def measure(args: argparse.Namespace, scratch: Path) -> None:
    plugins = built(args, scratch)
    (scratch / SHARE).write_text(yaml.safe_dump(base.share() | {"metadata": {"name": "planned"}}))
    plane = ControlPlane(scratch / "cluster").create()
    with content.agents() as address, plane.running():
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")} | {
            "KUBECONFIG": str(plane.kubeconfig),
            "XDG_CACHE_HOME": str(scratch / "cache"),
            "PATH": f"{programs()}:{os.environ['PATH']}",
        }
        asyncio.run(fill(plane, args.nodes, address))
        result: Object = {
            "what": "python -m measurements.scale.plugin; see its documentation",
            "environment": {
                "nodes": args.nodes,
                "repeats": args.repeats,
                "before": args.before,
                **results.machine(),
            },
            "commands": {},
        }
        for name in args.command or COMMANDS:
            figures = measured(plugins, name, args.repeats, scratch, environment)
            result["commands"][name] = figures | {"load": results.load()}
            results.write(result, args.out)
            print(f"{name}: {json.dumps(figures)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
