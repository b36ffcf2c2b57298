"""`gpushare simulated-driver`: simulates GPUs and the NVIDIA driver on a machine without them."""

import argparse
import os
import socket
from pathlib import Path

from gpushare.simulation import paths
from gpushare.simulation.driver.serve import serve
from gpushare.simulation.driver.state import CLIENT_INIT_MS, SERVER_INIT_MS, Delays, DriverState, Topology, make_gpus


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--directory", type=Path, default=Path(paths.directory()), help="directory of its sockets")
    parser.add_argument("--gpus", type=int, default=2, help="number of GPUs; default: 2")
    parser.add_argument(
        "--nvlink",
        type=Topology,
        choices=list(Topology),
        default=Topology.SWITCH,
        help="how NVLink joins them; default: switch, each with each as on an SXM board",
    )
    parser.add_argument("--product", default="NVIDIA H200", help="NVML product name; default: NVIDIA H200")
    parser.add_argument("--sms", type=int, default=132, help="streaming multiprocessors of each GPU")
    parser.add_argument("--memory-mib", type=int, default=143155, help="MiB of each GPU")
    parser.add_argument(
        "--node",
        default=os.environ.get("NODE_NAME") or socket.gethostname(),
        help="the GPUs' UUIDs are derived from it",
    )
    parser.add_argument("--driver-version", default="580.159.04", help="default: 580.159.04")
    parser.add_argument("--cuda-version", default="13.0", help="default: 13.0")
    for part, default in (("server", SERVER_INIT_MS), ("client", CLIENT_INIT_MS)):
        variable = f"GPUSHARE_SIMULATION_{part.upper()}_INIT_MS"
        parser.add_argument(
            f"--{part}-init-ms",
            type=float,
            default=os.environ.get(variable, default),
            help=f"milliseconds that an MPS {part} takes to start (env {variable})",
        )


def run(args: argparse.Namespace) -> int:
    gpus = make_gpus(args.node, args.gpus, args.product, args.sms, args.memory_mib)
    delays = Delays(args.server_init_ms, args.client_init_ms)
    state = DriverState(gpus, args.driver_version, args.cuda_version, delays, args.nvlink)
    serve(state, str(args.directory))
    return 0
