"""A GPU program for the contract suite, on the simulated GPU: a verb per line of standard input, a JSON answer each.

Verbs: init, create, fork, info, alloc BYTES, launch MS, sync, fault KIND, close, replace (the program by itself), exit.
Answers: an object, or {"error": code}.
The same verbs as cuda_client.py.
"""

import json
import os
import sys

sys.path.insert(0, sys.argv[1])

from gpushare.simulation.client import CudaError, SimulatedContext, initialize


def fork() -> int:
    """The error of a child's first context."""
    child = os.fork()
    if not child:
        try:
            SimulatedContext.create()
            os._exit(0)
        except CudaError as error:
            os._exit(min(error.code, 255))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def act(
    context: SimulatedContext | None, verb: str, argument: str
) -> tuple[SimulatedContext | None, dict[str, object]]:
    if verb == "init":
        initialize()
        return context, {}
    if verb == "fork":
        return context, {"child": fork()}
    if verb == "create":
        context = SimulatedContext.create()
        return context, {"uuid": context.uuid, "sms": context.sms}
    assert context is not None, "create comes first"
    match verb:
        case "info":
            free, total = context.mem_get_info()
            return context, {"free": free, "total": total}
        case "alloc":
            context.alloc(int(argument))
        case "launch":
            context.launch(float(argument))
        case "sync":
            context.synchronize()
        case "fault":
            context.fault(argument)
            context.synchronize()
        case "close":
            context.close()
    return context, {}


def main() -> None:
    context = None
    for line in sys.stdin:
        verb, _, argument = line.strip().partition(" ")
        if verb == "exit":
            return
        if verb == "replace":
            print("{}", flush=True)
            os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - the same program in the same process
        try:
            context, answer = act(context, verb, argument)
        except CudaError as error:
            answer = {"error": error.code}
        print(json.dumps(answer), flush=True)


main()
