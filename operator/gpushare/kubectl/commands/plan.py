"""Asks the API server, by a dry run, what it makes of the share in a file, and reads the fleet. Nothing is written."""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpushare.kube.resources import GPU_NODES, GPU_SHARES, NODES, KubeError, Object, Resource
from gpushare.kubectl import options
from gpushare.kubectl.cluster import Cluster, installed
from gpushare.kubectl.failures import WrongInputError
from gpushare.kubectl.output.report import Report
from gpushare.process import event_loop

if TYPE_CHECKING:
    from gpushare.planner import Snapshot

LISTED_AT = "1"
"""The version of our lists: nothing is watched after them."""
LARGEST_FILE = 3 * 1024 * 1024
"""Characters: more than the API server takes in one request."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=_text, help="YAML file with one GpuShare; - for standard input")
    options.add_output(parser, names=False, watch=False)


def _text(name: str) -> str:
    try:
        with sys.stdin if name == "-" else Path(name).open() as file:
            text = file.read(LARGEST_FILE + 1)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise argparse.ArgumentTypeError(f"cannot read {name}: {why}") from None
    if len(text) > LARGEST_FILE:
        raise argparse.ArgumentTypeError(
            f"{name} has more than {LARGEST_FILE} characters: give a file with one GpuShare"
        )
    return text


def run(cluster: Cluster, args: argparse.Namespace) -> Report:
    fleet = _Fleet(cluster)
    from gpushare.kubectl.views.plan import plan, wanted_share  # while kubectl asks

    wanted = wanted_share(args.file)
    installed(fleet.shares)
    try:
        accepted = _dry_run(cluster, wanted)
    except KubeError as error:
        raise WrongInputError(f"the API server refuses it: {error}") from None
    return plan(fleet.snapshot(), accepted)


def _dry_run(cluster: Cluster, wanted: Object) -> Object:
    """The share as the API server would store it, with its defaults. Raises KubeError where it refuses the share."""
    name = wanted["metadata"]["name"]
    if cluster.find(GPU_SHARES, name).result() is None:
        return cluster.try_create(GPU_SHARES, wanted).result()
    return cluster.try_patch(
        GPU_SHARES, name, [{"op": "replace", "path": "/spec", "value": wanted.get("spec")}]
    ).result()


class _Fleet:
    """What the operator's plan reads, asked for at once. Its coroutines are those of `resync.ClusterReader`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._nodes = cluster.items(NODES)
        self._gpu_nodes = cluster.items(GPU_NODES)
        self._version = cluster.read("/version")
        self.shares = cluster.items(GPU_SHARES)

    def snapshot(self) -> "Snapshot":
        from gpushare.controller.cache.fleet_cache import FleetCache, UnreadableError
        from gpushare.controller.cache.resync import read_once

        cache = FleetCache(lambda: None)
        cache.nodes.replace(self._nodes.result(), LISTED_AT)
        cache.gpu_nodes.replace(self._gpu_nodes.result(), LISTED_AT)
        event_loop.run(read_once(self, cache))
        try:
            return cache.snapshot(datetime.now(UTC))
        except UnreadableError as error:
            raise WrongInputError(str(error)) from None

    async def list_all(self, resource: Resource, namespace: str | None = None, **selectors: str) -> Object:
        asked = self.shares if resource == GPU_SHARES else self._cluster.items(resource, namespace, **selectors)
        return {"metadata": {"resourceVersion": LISTED_AT}, "items": asked.result()}

    async def server_version(self) -> str:
        return str(self._version.result().get("gitVersion", ""))

    async def served(self, resource: Resource) -> bool:
        try:
            answer = self._cluster.read(f"/apis/{resource.group}/{resource.version}").result()
        except KubeError as error:
            if error.not_found:
                return False
            raise
        return any(item.get("name") == resource.plural for item in answer.get("resources") or [])
