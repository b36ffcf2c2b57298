"""The command line. Results go to stdout, progress and errors to stderr; the exit code of a LocalClusterError is 1."""

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from localcluster import doctor
from localcluster.cluster import cluster, processes
from localcluster.cluster.components import FIRST, THEN
from localcluster.errors import LocalClusterError
from localcluster.estimate import estimate
from localcluster.images import buildah, names, publish
from localcluster.packages import ensure_packages
from localcluster.paths import cache_root
from localcluster.programs.build import build


def main(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except LocalClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m localcluster", description="A real Kubernetes, built from source."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument("--name", default="test", help="the cluster, several can coexist (default: test)")

    def add(
        name: str, run: object, text: str, parents: Sequence[argparse.ArgumentParser] = ()
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text, parents=list(parents))
        command.set_defaults(run=run)
        return command

    add("doctor", _doctor, "say what this machine lacks")
    estimated = add("estimate", _estimate, "say what the demo takes here: time, disk, and what it installs")
    estimated.add_argument("--environment", type=Path, default=Path(), help="the Python environment of `make venv`")
    add("packages", _packages, "install the Debian packages that are missing")
    add("build", _build, "build and cache Kubernetes, containerd and Helm")
    add("up", _up, "start a cluster, building it first if need be", [named])
    down = add("down", _down, "end a cluster and remove its traces", [named])
    down.epilog = "--name takes a pattern here: --name 'test*' ends test, test-gw0 and so on."
    add("env", _env, 'print the exports for a shell: eval "$(… env)"', [named])
    status = add("status", _status, "list the processes with PID and memory", [named])
    status.add_argument("--json", action="store_true", help="the components only, as JSON")
    for verb, text in (("restart", "SIGTERM"), ("kill", "SIGKILL")):
        replace = add(verb, _replace, f"{text} to a component; returns when its successor runs", [named])
        replace.set_defaults(signal=signal.Signals[text])
        replace.add_argument("component", choices=FIRST + THEN)
    load = add("load", _load, "load OCI archives into the cluster", [named])
    load.add_argument("archive", nargs="+", type=Path)
    shell = add("sh", _shell, "run a command (default: a shell) inside the node", [named])
    shell.add_argument("command", nargs=argparse.REMAINDER)
    build_images = add("images", _images, "build the repository's images, print their names and archives as JSON")
    build_images.add_argument("--load", metavar="NAME", help="also load them into this cluster")
    build_images.add_argument(
        "--push", metavar="REGISTRY", help="push them there instead, and print how to install them: HOST[:PORT][/PATH]"
    )
    build_images.add_argument("--plain-http", action="store_true", help="with --push: the registry has no TLS")
    build_images.add_argument(
        "--cupy", choices=buildah.CUPY_LOCKS, default="", help="for real GPUs: build the workload image with CuPy"
    )
    return parser


def _doctor(arguments: argparse.Namespace) -> None:
    doctor.require()
    print("this machine can build and run a cluster")


def _estimate(arguments: argparse.Namespace) -> None:
    print("\n".join(estimate(cache_root(), arguments.environment)), file=sys.stderr)


def _packages(arguments: argparse.Namespace) -> None:
    ensure_packages(cache_root())


def _build(arguments: argparse.Namespace) -> None:
    doctor.require()
    ensure_packages(cache_root())
    print(json.dumps({name: str(path) for name, path in asdict(build(cache_root())).items()}))


def _up(arguments: argparse.Namespace) -> None:
    doctor.require()
    ensure_packages(cache_root())
    print(cluster.exports(cluster.up(arguments.name, build(cache_root()))))


def _down(arguments: argparse.Namespace) -> None:
    for name in cluster.names_matching(arguments.name):
        cluster.down(name)


def _env(arguments: argparse.Namespace) -> None:
    print(cluster.exports(cluster.running(arguments.name)))


def _status(arguments: argparse.Namespace) -> None:
    layout = cluster.running(arguments.name)
    if arguments.json:
        print(json.dumps({name: asdict(process) for name, process in processes.components(layout).items()}))
        return
    for process in processes.everything(layout):
        print(f"{process.pid:>8} {process.rss_bytes / (1 << 20):>6.0f} MiB  {process.name}")


def _replace(arguments: argparse.Namespace) -> None:
    old, new = processes.replace(cluster.running(arguments.name), arguments.component, arguments.signal)
    print(f"{arguments.component}: PID {old} -> {new}")


def _load(arguments: argparse.Namespace) -> None:
    cluster.load_images(cluster.running(arguments.name), [archive.absolute() for archive in arguments.archive])


def _shell(arguments: argparse.Namespace) -> None:
    cluster.enter(cluster.running(arguments.name), arguments.command)


def _images(arguments: argparse.Namespace) -> None:
    if arguments.push:
        names.checked_registry(arguments.push)
    doctor.require()
    ensure_packages(cache_root())
    if arguments.push:
        publish.require_login(arguments.push, plain_http=arguments.plain_http)
    built = buildah.build_images(cache_root(), cupy=arguments.cupy)
    if arguments.push:
        pushed = publish.publish(built, arguments.push, cache_root(), plain_http=arguments.plain_http)
        print("\n".join(publish.next_steps(pushed, arguments.cupy)))
        return
    if arguments.load:
        cluster.load_built(cluster.running(arguments.load), built)
    print(json.dumps({target: asdict(image) for target, image in built.items()}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
