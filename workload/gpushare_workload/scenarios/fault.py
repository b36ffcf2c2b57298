"""fault: what if a neighbour's kernel goes wrong?

Commonly claimed: since Volta every MPS client has an address space of its own, so a wild pointer hurts nobody else.
Address spaces keep others from reading and writing your memory; they do not keep a fatal fault from ending everybody.
Measured on an H200 under MPS: an illegal address ends all clients of the GPU with 700, a trap with 719; a device-side
assert ends the culprit alone, with 710. So one GPU is one trust domain.

Roles, one process each: `faulty` runs one kernel that fails as told and reports the error that it got; `neighbour` runs
short kernels, checks every result, and exits 3 with the error where the fault came through. Exit code 0 of `faulty`
means that the fault was seen as it should be, by the program that made it.
"""

import argparse
from contextlib import closing

from gpushare_workload import neighbour
from gpushare_workload.backend import Backend, GpuError, open_backend
from gpushare_workload.backend.seam import Fault
from gpushare_workload.bounds import at_least
from gpushare_workload.report import Report, WrongError
from gpushare_workload.stopping import Stop

NAME = "fault"
CODES = {Fault.ILLEGAL_ADDRESS: 700, Fault.TRAP: 719, Fault.ASSERT: 710}
"""cudaErrorIllegalAddress, cudaErrorLaunchFailure, cudaErrorAssert."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--role", choices=("faulty", "neighbour"), default="neighbour")
    parser.add_argument("--fault", choices=[it.value for it in Fault], default=Fault.ILLEGAL_ADDRESS.value)
    parser.add_argument("--after", type=float, default=1.0, metavar="SECONDS", help="until the faulty kernel")
    neighbour.add_arguments(parser)


def run(arguments: argparse.Namespace, report: Report, stop: Stop) -> None:
    neighbour.check(arguments)
    at_least(arguments, after=0)
    with closing(open_backend(arguments.backend)) as backend:
        if arguments.role == "neighbour":
            neighbour.check_results(backend, arguments, report, stop)
            return
        report.emit("started", role="faulty", fault=arguments.fault)
        backend.synchronize()
        if not stop.wait(arguments.after):
            _fail(backend, Fault(arguments.fault), report)


def _fail(backend: Backend, fault: Fault, report: Report) -> None:
    try:
        backend.fault(fault)
    except GpuError as error:
        report.emit("faulted", role="faulty", fault=fault.value, code=error.code)
        if error.code != CODES[fault]:
            raise WrongError(f"{fault.value} gave CUDA error {error.code}, not {CODES[fault]}") from error
        return
    raise WrongError(f"{fault.value} gave no error")
