"""A tenant that tries to exceed its grant. Its source is run in a container of the clients' image.

The one argument is a JSON object: `environment` (variables to set, or to remove where null, before CUDA starts), `way`
(plain, managed or asynchronous memory above the grant; nested, busy, debugger, contexts or control), `at` (when to
measure the throughput, seconds since the epoch; 0: not at all), `hold` (seconds to stay a client). Prints one JSON
line per observation.
"""

import ctypes
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

MIB = 1 << 20
ABOVE = 1024 * MIB
CONTEXTS = 60
TRACE_SECONDS = 3.0
COMMAND_SECONDS = 5
PTRACE_ATTACH, PTRACE_DETACH = 16, 17
NESTED = r"""
extern "C" __global__ void child(float *out, int n) {
    float a = threadIdx.x, b = a + 1, c = a + 2, d = a + 3;
    for (int i = 0; i < n; i++) {
        a = fmaf(a, 1.000001f, 0.5f);
        b = fmaf(b, 1.000001f, 0.5f);
        c = fmaf(c, 1.000001f, 0.5f);
        d = fmaf(d, 1.000001f, 0.5f);
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = a + b + c + d;
}
extern "C" __global__ void parent(float *out, int blocks, int n) { child<<<blocks, 256>>>(out, n); }
"""


def emit(event, **values):
    os.write(1, json.dumps({"event": event, "at": time.time(), **values}).encode() + b"\n")


def above_grant(backend, granted, way):
    """Ask for more than the grant, and keep what was allocated. Returns whether the request was refused."""
    from gpushare_workload.backend.interface import OutOfMemoryError

    size = granted + ABOVE
    if way in ("managed", "asynchronous"):
        import cupy

        runtime = cupy.cuda.runtime
        try:
            runtime.mallocManaged(size) if way == "managed" else runtime.mallocAsync(size, 0)
            runtime.deviceSynchronize()
        except runtime.CUDARuntimeError as error:
            emit("refused", code=error.status)
            return True
        return False
    try:
        backend.allocate(size)
    except OutOfMemoryError as error:
        emit("refused", code=error.code)
        return True
    return False


def throughput(backend, way):
    """The part of the GPU's peak that a kernel for the whole GPU reaches."""
    from gpushare_workload.backend.work import Grid, LoadKind, Work
    from gpushare_workload.scenarios.isolation.limits import rate

    if not backend.timed:
        return None
    device = backend.device()
    work = Work(LoadKind.COMPUTE, Grid.SATURATING.blocks(device.total_sms or device.sms))
    launch = nested(work) if way == "nested" else backend.prepare(work).launch
    return rate(launch, backend.synchronize, 0.6) * work.flops / backend.peaks().flops


def nested(work):
    """Launches the same work from a kernel, not from the host."""
    import cupy
    import numpy

    parent, out = cupy.RawModule(code=NESTED, options=("-dc",)).get_function("parent"), cupy.zeros(work.threads, "f4")
    arguments = (out, numpy.int32(work.blocks), numpy.int32(work.iterations))
    return lambda: parent((1,), (1,), arguments)


def contexts():
    """Makes as many contexts as this process gets."""
    made, error = [], None
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        cuda.cuInit(0)
        while len(made) < CONTEXTS and not error:
            context = ctypes.c_void_p()
            error = cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
            if not error:
                made.append(context)
    except OSError:
        from gpushare.simulation.client import CudaError, SimulatedContext

        try:
            while len(made) < CONTEXTS:
                made.append(SimulatedContext.create())
        except CudaError as refused:
            error = refused.code
    emit("contexts", made=len(made), error=error)
    return made


def control(server, client):
    """The control program's answer to each command of a tenant. PIDs are those of the node."""
    commands = (
        "get_server_list", "get_default_active_thread_percentage", "ps", "get_device_client_list",
        "set_default_active_thread_percentage 100", "set_default_device_pinned_mem_limit 0 100G",
        "set_default_client_priority 0", f"set_active_thread_percentage {server} 100",
        f"set_device_pinned_mem_limit {server} 0 100G", f"terminate_client {server} {client}",
        f"shutdown_server {server} -f", "start_server -uid 0", "quit", "quit -t 1", "no_such_command",
    )  # fmt: skip
    for command in commands:
        try:
            done = subprocess.run(["nvidia-cuda-mps-control"], input=command + "\n", text=True, capture_output=True,
                                  timeout=COMMAND_SECONDS)  # fmt: skip
            emit("control", command=command, code=done.returncode, answer=(done.stdout + done.stderr).strip()[:300])
        except (OSError, subprocess.TimeoutExpired) as error:
            emit("control", command=command, code=None, answer=f"{type(error).__name__}: {error}"[:300])


def others(server, client):
    """The visible processes, and whether those of others can be signalled."""
    seen = [int(path.name) for path in pathlib.Path("/proc").iterdir() if path.name.isdigit()]
    answers = {}
    for name, pid in (("server", server), ("client", client)):
        try:
            os.kill(pid, signal.SIGTERM)
            answers[name] = "signalled"
        except OSError as error:
            answers[name] = type(error).__name__
    emit("others", uid=os.getuid(), processes=len(seen), seen=[server in seen, client in seen], signals=answers)


def debugged(text):
    """Another process of this container, stopped in mid-kernel by a debugger for a while."""
    child = subprocess.Popen([sys.executable, "-c", text, json.dumps({"way": "busy", "hold": TRACE_SECONDS + 3})],
                             stdout=subprocess.PIPE, text=True)  # fmt: skip
    for line in child.stdout:
        if json.loads(line)["event"] == "busy":
            break
    libc = ctypes.CDLL(None, use_errno=True)
    attached = libc.ptrace(PTRACE_ATTACH, child.pid, None, None)
    emit("debugger", attached=attached == 0, error=os.strerror(ctypes.get_errno()) if attached else "")
    time.sleep(TRACE_SECONDS)
    if attached == 0:
        libc.ptrace(PTRACE_DETACH, child.pid, None, None)
    emit("debugged", code=child.wait())


def busy(backend, seconds):
    emit("busy")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        backend.spin(500)
        backend.synchronize()


def client(plan):
    from gpushare_workload.backend import open_backend
    from gpushare_workload.gpus.grant import ContainerGrant

    way, grant = plan.get("way", "plain"), ContainerGrant.from_environment()
    backend = open_backend("auto")
    if way == "busy":
        busy(backend, plan["hold"])
        return
    device = backend.device()
    refused = above_grant(backend, grant.memory, way)
    emit("client", sms=device.sms, total_sms=device.total_sms, free_mib=device.free // MIB, above_refused=refused)
    if plan.get("at"):
        time.sleep(max(0.0, plan["at"] - time.time()))
        emit("throughput", share_of_peak=throughput(backend, way))
    end = time.monotonic() + plan.get("hold", 0)
    while time.monotonic() < end:
        backend.spin(5)
        backend.synchronize()
        time.sleep(0.005)


def main(plan, text):
    for name, value in plan.get("environment", {}).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    way = plan.get("way", "plain")
    if way == "control":
        control(plan["server"], plan["client"])
        others(plan["server"], plan["client"])
    elif way == "debugger":
        debugged(text)
    elif way == "contexts":
        held = contexts()
        time.sleep(plan["hold"])
        del held
    else:
        crowd = [
            subprocess.Popen([sys.executable, "-c", text, json.dumps({"hold": plan["hold"] + 2})])
            for _ in range(plan.get("processes", 1) - 1)
        ]
        try:
            client(plan)
        except Exception as error:  # noqa: BLE001 - whatever it was is what became of the attempt
            emit("error", code=getattr(error, "code", getattr(error, "status", None)), text=str(error)[:300])
        for process in crowd:
            process.wait()
    emit("over")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), os.environ.get("PROGRAM", ""))
