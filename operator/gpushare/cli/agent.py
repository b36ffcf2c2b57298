"""`gpushare agent`: the part of gpushare on each node with GPUs."""

import argparse
import logging
import os
from importlib.metadata import version
from pathlib import Path

from gpushare.api import names
from gpushare.api.compute_mode import ComputeModePolicy
from gpushare.process.event_loop import run_until_signal

LOG = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", default=os.environ.get("NODE_NAME"), help="name of this node (env NODE_NAME)")
    parser.add_argument(
        "--pod", default=os.environ.get("POD_NAME", "gpushare-agent"), help="name of this pod (env POD_NAME)"
    )
    parser.add_argument(
        "--namespace",
        default=os.environ.get("GPUSHARE_NAMESPACE", "gpushare-system"),
        help="namespace of gpushare (env GPUSHARE_NAMESPACE); default: gpushare-system",
    )
    parser.add_argument(
        "--root",
        type=Path,
        default=Path(names.RUN_DIR),
        help=f"directories of the GPUs' MPS daemons; default: {names.RUN_DIR}",
    )
    parser.add_argument("--kubelet-dir", type=Path, default=Path("/var/lib/kubelet"), help="the kubelet's --root-dir")
    parser.add_argument(
        "--device-plugins-dir",
        type=Path,
        default=Path("/var/lib/kubelet/device-plugins"),
        help="where the kubelet looks for device plugins, whatever its --root-dir",
    )
    parser.add_argument("--cdi-dir", type=Path, default=Path("/var/run/cdi"), help="where CDI specs are written")
    parser.add_argument(
        "--cdi",
        choices=("Auto", "Always", "Never"),
        default="Auto",
        help="whether containers get their GPU by CDI; Auto (default): with containerd 2 or newer, or CRI-O",
    )
    parser.add_argument(
        "--compute-mode",
        type=ComputeModePolicy,
        choices=tuple(ComputeModePolicy),
        default=ComputeModePolicy.MANAGE,
        help="Manage (default): the agent sets shared GPUs to EXCLUSIVE_PROCESS (untested on hardware); "
        "Leave: it sets no compute mode",
    )
    parser.add_argument("--driver-root", default="/", help="directory of the NVIDIA driver on the host; default: /")
    parser.add_argument(
        "--driver-mount",
        type=Path,
        default=Path("/driver-root"),
        help="where the driver root is mounted in this container",
    )
    parser.add_argument("--probe-port", type=int, default=8082, help="HTTP port of /healthz and /readyz")
    parser.add_argument("--metrics-port", type=int, default=0, help="HTTP port of /metrics; 0 (default): none")
    parser.add_argument("--simulation", action="store_true", help="use the simulated GPUs of this node")


def run(args: argparse.Namespace) -> int:
    """Returns 0 after SIGTERM, 2 where it could not work: the text says why."""
    if problem := unfit(args.node, os.getpid()):
        LOG.error("%s", problem)
        return 2
    if run_until_signal(_main(args)):
        LOG.info("the agent ends; gates and daemons stay")
    return 0


def unfit(node: str | None, pid: int) -> str:
    """Why the agent could not work here; empty where it can. `pid`: its own. In a PID namespace of its own it is the
    first process, sees no client, and none would be ended in order."""
    if not node:
        return "the node's name is missing: give --node, or NODE_NAME in the environment"
    if pid == 1:
        return (
            "the agent is not in its node's PID namespace, where the clients are that it guards: a policy of the "
            "cluster has changed its pod's hostPID; leave gpushare's namespace out of it"
        )
    return ""


async def _main(args: argparse.Namespace) -> None:
    from gpushare.agent.run import run as run_agent
    from gpushare.agent.settings import AgentSettings
    from gpushare.kube.client import connect
    from gpushare.simulation import paths

    settings = AgentSettings(
        node=args.node,
        pod=args.pod,
        namespace=args.namespace,
        root=args.root,
        kubelet_dir=args.kubelet_dir,
        device_plugins=args.device_plugins_dir,
        cdi_dir=args.cdi_dir,
        cdi=args.cdi,
        compute_mode_policy=args.compute_mode,
        driver_root=args.driver_root,
        driver_mount=args.driver_mount,
        probe_port=args.probe_port,
        metrics_port=args.metrics_port,
        simulation_dir=paths.directory() if args.simulation else None,
    )
    kube = await connect(f"gpushare-agent/{version('gpushare')}")
    try:
        await run_agent(settings, kube)
    finally:
        await kube.close()
