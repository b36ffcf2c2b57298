"""`gpushare simulated-driver`: the process that stands in for the NVIDIA driver on a machine without a GPU."""

import argparse
import os
import socket
from pathlib import Path

from gpushare.simulation import paths
from gpushare.simulation.driver import Delays, State, make_gpus, serve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--directory", type=Path, default=Path(paths.directory()), help="where its sockets go")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--product", default="NVIDIA H200")
    parser.add_argument("--sms", type=int, default=132, help="streaming multiprocessors of each GPU")
    parser.add_argument("--memory-mib", type=int, default=143155, help="MiB of each GPU")
    parser.add_argument("--node", default=os.environ.get("NODE_NAME") or socket.gethostname(), help="seeds the UUIDs")
    parser.add_argument("--driver-version", default="580.159.04")
    parser.add_argument("--cuda-version", default="13.0")
    parser.add_argument("--server-init-ms", type=float, default=Delays.server_init_ms, help="a server's start-up time")
    parser.add_argument("--client-init-ms", type=float, default=Delays.client_init_ms, help="a client's start-up time")


def run(args: argparse.Namespace) -> int:
    gpus = make_gpus(args.node, args.gpus, args.product, args.sms, args.memory_mib)
    delays = Delays(args.server_init_ms, args.client_init_ms)
    serve(State(gpus, args.driver_version, args.cuda_version, delays), str(args.directory))
    return 0
