"""`gpushare mps-supervisor`: the process of an MPS pod. After SIGTERM the daemons end once idle; then it exits 0."""

import argparse
import logging
import os
import signal
from pathlib import Path

from gpushare.api.names import RUN_DIR, SIMULATION_DIR
from gpushare.mps.protocol import ProtocolSetting
from gpushare.mps.supervisor.supervisor import Supervisor
from gpushare.nvml.types import Nvml, NvmlError
from gpushare.process.open_files import raise_nofile

LOG = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--share", required=True, help="name of the GpuShare whose GPUs this pod serves")
    parser.add_argument(
        "--root", type=Path, default=Path(RUN_DIR), help=f"directories of the GPUs' MPS daemons; default: {RUN_DIR}"
    )
    parser.add_argument(
        "--bin-dir", type=Path, help="directory of nvidia-cuda-mps-control and nvidia-cuda-mps-server; default: PATH"
    )
    parser.add_argument(
        "--mps-protocol",
        type=ProtocolSetting,
        choices=list(ProtocolSetting),
        default=ProtocolSetting.V2,
        help="Auto: MPS v3 where driver and control program have it, else v2; default: V2",
    )
    parser.add_argument("--simulation", action="store_true", help="serve simulated GPUs with simulated MPS daemons")


def run(args: argparse.Namespace) -> int:
    try:
        nvml, bin_dir = _driver(args)
    except NvmlError as error:
        LOG.error("the driver cannot be used: %s", error)
        return 1
    remark = raise_nofile()
    if remark:
        LOG.warning("%s", remark)
    supervisor = Supervisor(args.share, args.root, bin_dir, nvml, remark, protocol=args.mps_protocol)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.end_when_idle())
    supervisor.run()
    return 0


def _driver(args: argparse.Namespace) -> tuple[Nvml, Path | None]:
    """NVML and the directory of the MPS executables, both real or both simulated."""
    if args.simulation:
        from gpushare.simulation import bin_dir
        from gpushare.simulation.nvml import SimulatedNvml

        directory = Path(os.environ.get("GPUSHARE_SIMULATION_DIR", SIMULATION_DIR))
        return SimulatedNvml(directory), args.bin_dir or bin_dir()
    from gpushare.nvml.real import PynvmlNvml

    return PynvmlNvml(), args.bin_dir
