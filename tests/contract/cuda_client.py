"""A GPU program for the contract suite, on a real GPU: CUDA's driver API through ctypes, nothing to install.

Verbs: init, create, fork, info, alloc BYTES, launch MS, sync, fault KIND, close, replace (the program by itself), exit.
Answers: an object, or {"error": code}.
The same verbs as simulated_client.py. One thread block per launch: a kernel spins for its time whatever its SMs.
"""

import ctypes
import json
import os
import sys
from typing import Any

NANOSECONDS = 1_000_000
MULTIPROCESSOR_COUNT = 16
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.extern .func __assertfail (.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, .param .b64 s);
.global .align 1 .b8 text[8] = {111, 110, 112, 117, 114, 112, 0, 0};

.visible .entry spin(.param .u64 nanoseconds) {
    .reg .u64 %t<4>;
    .reg .pred %p;
    ld.param.u64 %t0, [nanoseconds];
    mov.u64 %t1, %globaltimer;
again:
    mov.u64 %t2, %globaltimer;
    sub.u64 %t3, %t2, %t1;
    setp.lt.u64 %p, %t3, %t0;
    @%p bra again;
    ret;
}
.visible .entry illegal_address(.param .u64 unused) {
    .reg .u64 %a;
    .reg .u32 %v;
    mov.u64 %a, 16;
    mov.u32 %v, 1;
    st.global.u32 [%a], %v;
    ret;
}
.visible .entry trap_kernel(.param .u64 unused) {
    trap;
    ret;
}
.visible .entry assert_kernel(.param .u64 unused) {
    .reg .u64 %a;
    mov.u64 %a, text;
    cvta.global.u64 %a, %a;
    {
        .param .b64 p0; .param .b64 p1; .param .b32 p2; .param .b64 p3; .param .b64 p4;
        st.param.b64 [p0], %a;
        st.param.b64 [p1], %a;
        st.param.b32 [p2], 1;
        st.param.b64 [p3], %a;
        st.param.b64 [p4], 1;
        call.uni __assertfail, (p0, p1, p2, p3, p4);
    }
    ret;
}
"""
KERNELS = {"spin": b"spin", "illegal_address": b"illegal_address", "trap": b"trap_kernel", "assert": b"assert_kernel"}


class CudaError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"CUDA error {code}")
        self.code = code


class Cuda:
    def __init__(self) -> None:
        self._library: Any = ctypes.CDLL("libcuda.so.1")
        self._context = ctypes.c_void_p()
        self._functions: dict[str, ctypes.c_void_p] = {}

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise CudaError(code)

    def init(self) -> None:
        self._call("cuInit", 0)

    def fork(self) -> dict[str, object]:
        """The error of a child's first context."""
        child = os.fork()
        if not child:
            try:
                self.create()
                os._exit(0)
            except CudaError as error:
                os._exit(min(error.code, 255))
        return {"child": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}

    def create(self) -> dict[str, object]:
        device, sms = ctypes.c_int(), ctypes.c_int()
        identity = (ctypes.c_ubyte * 16)()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDeviceGetUuid", identity, device)
        self._call("cuCtxCreate_v2", ctypes.byref(self._context), 0, device)
        self._call("cuDeviceGetAttribute", ctypes.byref(sms), MULTIPROCESSOR_COUNT, device)
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), PTX)
        for name, symbol in KERNELS.items():
            function = ctypes.c_void_p()
            self._call("cuModuleGetFunction", ctypes.byref(function), module, symbol)
            self._functions[name] = function
        text = bytes(identity).hex()
        parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
        return {"uuid": "GPU-" + "-".join(parts), "sms": sms.value}

    def info(self) -> dict[str, object]:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return {"free": free.value, "total": total.value}

    def alloc(self, size: int) -> None:
        self._call("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(size))

    def launch(self, kernel: str, value: int = 0) -> None:
        argument = ctypes.c_uint64(value)
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(argument), ctypes.c_void_p))
        grid_and_block = (1, 1, 1, 1, 1, 1)
        self._call("cuLaunchKernel", self._functions[kernel], *grid_and_block, 0, None, arguments, None)

    def synchronize(self) -> None:
        self._call("cuCtxSynchronize")

    def close(self) -> None:
        self._call("cuCtxDestroy_v2", self._context)


def act(cuda: Cuda, verb: str, argument: str) -> dict[str, object]:
    match verb:
        case "init":
            cuda.init()
        case "fork":
            return cuda.fork()
        case "create":
            return cuda.create()
        case "info":
            return cuda.info()
        case "alloc":
            cuda.alloc(int(argument))
        case "launch":
            cuda.launch("spin", int(float(argument) * NANOSECONDS))
        case "sync":
            cuda.synchronize()
        case "fault":
            cuda.launch(argument)
            cuda.synchronize()
        case "close":
            cuda.close()
    return {}


def main() -> None:
    cuda = Cuda()
    for line in sys.stdin:
        verb, _, argument = line.strip().partition(" ")
        if verb == "exit":
            return
        if verb == "replace":
            print("{}", flush=True)
            os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - the same program in the same process
        try:
            answer = act(cuda, verb, argument)
        except CudaError as error:
            answer = {"error": error.code}
        print(json.dumps(answer), flush=True)


main()
