"""fault: what if a neighbour's kernel goes wrong?

Commonly claimed: since Volta every MPS client has its own address space, so a wild pointer hurts nobody else. Address
spaces keep other clients from reading and writing your memory; they do not keep a fatal fault from ending all clients.
Under MPS an illegal address or a trap ends all clients of the GPU, a device-side assert the faulty client alone
(docs/mps.md, "Who dies with whom"). So one GPU is one trust domain.

Roles, one process each. `faulty` runs one kernel that fails in the chosen way and reports its CUDA error. `neighbour`
runs short kernels, checks every result, and exits 3 with the CUDA error if the fault reaches it. Exit code 0 of
`faulty` means that it got the error that belongs to this fault.
"""

import argparse
from contextlib import closing

from gpushare_workload.backend import Backend, GpuError, open_backend
from gpushare_workload.backend.interface import KernelFault
from gpushare_workload.events import JsonLines, WrongError
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.scenarios.isolation import neighbour
from gpushare_workload.scenarios.options import check_bounds

NAME = "fault"
CODES = {KernelFault.ILLEGAL_ADDRESS: 700, KernelFault.TRAP: 719, KernelFault.ASSERT: 710}
"""cudaErrorIllegalAddress, cudaErrorLaunchFailure, cudaErrorAssert."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--role", choices=("faulty", "neighbour"), default="neighbour", help="see above (default: %(default)s)"
    )
    parser.add_argument(
        "--fault",
        choices=[kind.value for kind in KernelFault],
        default=KernelFault.ILLEGAL_ADDRESS.value,
        help="how the kernel of `faulty` fails (default: %(default)s)",
    )
    parser.add_argument("--after", type=float, default=1.0, metavar="SECONDS", help="time until the faulty kernel")
    neighbour.add_arguments(parser)


def run(arguments: argparse.Namespace, events: JsonLines, stop: Stop) -> None:
    neighbour.check(arguments)
    check_bounds(arguments, after=0)
    with closing(open_backend(arguments.backend)) as backend:
        if arguments.role == "neighbour":
            neighbour.check_results(backend, arguments, events, stop)
            return
        events.emit("started", role="faulty", fault=arguments.fault)
        backend.synchronize()
        if not stop.wait(arguments.after):
            _fail(backend, KernelFault(arguments.fault), events)


def _fail(backend: Backend, fault: KernelFault, events: JsonLines) -> None:
    try:
        backend.fault(fault)
    except GpuError as error:
        events.emit("faulted", role="faulty", fault=fault.value, code=error.code)
        if error.code != CODES[fault]:
            raise WrongError(f"{fault.value} gave CUDA error {error.code}, not {CODES[fault]}") from error
        return
    raise WrongError(f"{fault.value} gave no error")
