"""Whom the broker counts: processes that helpers let in, and one that the MPS server lists under another's PID.

A library that is preloaded before CUDA's own does both, so that the program under attack is a real one: a helper makes
each connection to the broker and ends a second later; or another process sends each message, under a PID that is
neither's. Where kernel or runtime do not let it, the result says so: `could not be tried`. Meanwhile neighbours check
their results. Honest programs, beside them: a parent that only asked, with workers.
"""

import base64
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpushare.grant.model import most_contexts
from localcluster.kubectl import Object
from measurements.gpu.stack.suite import Findings
from measurements.gpu.stack.suites import parts
from tests.cluster.harness import Harness, Share, Tenant, wait_until
from tests.cluster.node import daemon_of
from tests.cluster.rights.forger import FORGER

SHARE, PER_GPU, PROCESSES, MEMORY = "identity", 8, 2, "8Gi"
CROWD = 12
TOLD_SECONDS = 45
LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
static int is_unix(int fd) {
    struct sockaddr_un address;
    socklen_t size = sizeof address;
    return !getsockname(fd, (struct sockaddr *)&address, &size) && address.sun_family == AF_UNIX;
}
int connect(int fd, const struct sockaddr *to, socklen_t size) {
    int (*next)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "connect");
    const char *path = ((const struct sockaddr_un *)to)->sun_path;
    size_t length = to->sa_family == AF_UNIX ? strnlen(path, sizeof ((struct sockaddr_un *)0)->sun_path) : 0;
    if (!getenv("HELPED") || length < 8 || memcmp(path + length - 8, "/control", 8)) return next(fd, to, size);
    int done[2], error = -1;
    if (pipe(done)) return -1;
    if (!fork()) {
        error = next(fd, to, size);
        if (write(done[1], &error, sizeof error) > 0) sleep(1);
        _exit(0);
    }
    if (read(done[0], &error, sizeof error) < 0) error = -1;
    close(done[0]); close(done[1]);
    return error;
}
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
ssize_t sendmsg(int fd, const struct msghdr *given, int flags) {
    ssize_t (*next)(int, const struct msghdr *, int) = dlsym(RTLD_NEXT, "sendmsg");
    const char *forger = getenv("FORGE_FD");
    int descriptors[16] = {fd}, count = 1, sent = 0;
    size_t length = 0;
    for (size_t part = 0; part < (size_t)given->msg_iovlen; part++) length += given->msg_iov[part].iov_len;
    if (!forger || !length || length > 60000 || !is_unix(fd)) return next(fd, given, flags);
    for (struct cmsghdr *c = CMSG_FIRSTHDR(given); c; c = CMSG_NXTHDR((struct msghdr *)given, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
            for (size_t n = 0; n < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int) && count < 16; n++)
                memcpy(&descriptors[count++], CMSG_DATA(c) + n * sizeof(int), sizeof(int));
    char room[CMSG_SPACE(sizeof descriptors)] = {0};
    struct msghdr message = {.msg_iov = given->msg_iov, .msg_iovlen = given->msg_iovlen, .msg_control = room};
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET; c->cmsg_type = SCM_RIGHTS; c->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(c), descriptors, count * sizeof(int));
    pthread_mutex_lock(&one_at_a_time);
    if (next(atoi(forger), &message, 0) < 0 || recv(atoi(forger), &sent, sizeof sent, 0) != sizeof sent) sent = -EPIPE;
    pthread_mutex_unlock(&one_at_a_time);
    if (sent >= 0) return sent;
    errno = -sent;
    return -1;
}
ssize_t send(int fd, const void *data, size_t size, int flags) {
    ssize_t (*next)(int, const void *, size_t, int) = dlsym(RTLD_NEXT, "send");
    struct iovec part = {(void *)data, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    return getenv("FORGE_FD") && is_unix(fd) ? sendmsg(fd, &message, flags) : next(fd, data, size, flags);
}
"""
PROGRAM = (
    f"{FORGER}\n"
    + """
import base64, ctypes, json, os, subprocess, sys, threading, time
from pathlib import Path
way, code = sys.argv[1], os.environ["PROGRAM"]
def emit(event, **values):
    os.write(1, json.dumps({"event": event, **values}).encode() + b"\\n")
def start(way, **variables):
    command = [sys.executable, "-c", code, way]
    return subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.PIPE, text=True)
def preloaded():
    path = Path("/tmp/attack.so")
    path.write_bytes(base64.b64decode(os.environ["LIBRARY"]))
    return str(path)
def client():
    from gpushare_workload.backend import open_backend
    try:
        backend = open_backend("auto")
        backend.device()
        return backend, 0
    except Exception as error:
        return None, getattr(error, "code", getattr(error, "status", None)) or repr(error)[:200]
def initialised():
    try:
        return ctypes.CDLL("libcuda.so.1").cuInit(0)
    except OSError:
        from gpushare.simulation.client import initialize
        initialize()
        return 0
if way == "one":
    backend, error = client()
    emit("one", error=error)
elif way == "helped":
    crowd = [start("one", LD_PRELOAD=preloaded(), HELPED="1") for _ in range(int(os.environ["CROWD"]))]
    emit("helped", errors=[json.loads(one.stdout.readline() or '{"error": "ended"}')["error"] for one in crowd])
elif way == "honest":
    asked = initialised()
    crowd = [start("one") for _ in range(1)]
    emit("honest", asked=asked, errors=[json.loads(one.stdout.readline())["error"] for one in crowd])
elif way == "forge":
    try:
        forger = start_forger()
    except OSError as error:
        emit("forged", error=f"could not be tried: {error}")
        sys.exit(0)
    os.set_inheritable(forger.fileno(), True)
    os.environ |= {"LD_PRELOAD": preloaded(), "FORGE_FD": str(forger.fileno())}
    os.execv(sys.executable, [sys.executable, "-c", code, "computes"])
elif way == "computes":
    def too_late():
        emit("forged", error="could not be tried: CUDA gives no context within 40 s")
        os._exit(1)
    waiting = threading.Timer(40, too_late)
    waiting.start()
    backend, error = client()
    waiting.cancel()
    emit("forged", error=error)
    try:
        while not error:
            backend.spin(2000)
            backend.synchronize()
    except Exception as ended:
        emit("ended", code=getattr(ended, "code", getattr(ended, "status", None)), text=str(ended)[:200])
time.sleep(3600)
"""
)
"""The one argument is the way; `PROGRAM`, `LIBRARY` and `CROWD` are in the environment."""


def measure(harness: Harness, findings: Findings) -> None:
    clients: dict[str, Any] = {
        "perGpu": PER_GPU,
        "processes": PROCESSES,
        "threads": {"default": 10, "max": 25},
        "memory": {"default": MEMORY},
    }
    findings.figures["most_contexts"] = most_contexts(PROCESSES, PER_GPU)
    with harness.share(SHARE, clients=clients) as share, harness.namespace(enforce="privileged") as tenant:
        share.wait_capacity(PER_GPU)
        library = base64.b64encode(_compiled()).decode()
        names = tenant.neighbours(SHARE, 2)
        for name, step in (("honest", _honest), ("helped", _helped), ("forged", _forged)):
            with findings.phase(name):
                findings.figures[name] = step(harness, share, tenant, library, findings)
                tenant.go_on(names)
        share.apply(clients=clients, enforcement="Terminate")
        share.wait_ready()
        with findings.phase("Terminate"):
            findings.figures["terminated"] = _terminated(harness, share, tenant, library, findings)
        tenant.go_on(names)
        findings.expect("the neighbours go on", parts.alive(tenant, names) == names)


def _honest(harness: Harness, share: Share, tenant: Tenant, library: str, findings: Findings) -> dict[str, Any]:
    """A parent that only asked whether there is a GPU, and a worker that uses it."""
    tenant.start(_pod(tenant, "honest", library))
    said = tenant.wait_event("honest", "honest", 60)
    findings.expect("a parent that only asked and its worker are let in", (said["asked"], said["errors"]) == (0, [0]))
    told = parts.reasons(tenant, "honest")
    findings.expect("nothing is told of honest programs", not {"NeverAttached", "ClientNotListed"} & set(told))
    return {**said, "told": told}


def _helped(harness: Harness, share: Share, tenant: Tenant, library: str, findings: Findings) -> dict[str, Any]:
    tenant.start(_pod(tenant, "helped", library))
    errors = tenant.wait_event("helped", "helped", 120)["errors"]
    findings.expect("of twelve whom helpers let in no more use the GPU than granted", errors.count(0) <= PROCESSES)
    wait_until("it is told", lambda: "AttachRefused" in parts.reasons(tenant, "helped"), TOLD_SECONDS)
    outcome = {"errors": errors, "told": parts.reasons(tenant, "helped")}
    tenant.delete_pods("helped")
    return outcome


def _forged(harness: Harness, share: Share, tenant: Tenant, library: str, findings: Findings) -> dict[str, Any]:
    """It is found, and deleting it in mid-kernel ends nobody."""
    tenant.start(_pod(tenant, "forge", library))
    said = tenant.wait_event("forge", "forged", 60)
    if not _was_tried(said, findings):
        return {"could_not_be_tried": said["error"]}
    wait_until("it is told", lambda: "ClientNotListed" in parts.reasons(tenant, "forge"), TOLD_SECONDS)
    outcome = {"clients": daemon_of(harness, share).get("clients"), "told": parts.reasons(tenant, "forge")}
    tenant.delete_pods("forge")
    return outcome


def _was_tried(said: dict[str, Any], findings: Findings) -> bool:
    """An attack that kernel or runtime do not let anybody try is no expectation that failed."""
    tried = "could not be tried" not in str(said["error"])
    if tried:
        findings.expect("the attack is carried out", said["error"] == 0)
    return tried and said["error"] == 0


def _terminated(harness: Harness, share: Share, tenant: Tenant, library: str, findings: Findings) -> dict[str, Any]:
    pod = _pod(tenant, "forge", library)
    pod["metadata"]["name"] = "forge-again"
    tenant.start(pod)
    said = tenant.wait_event("forge-again", "forged", 60)
    if not _was_tried(said, findings):
        return {"could_not_be_tried": said["error"]}
    ended = tenant.wait_event("forge-again", "ended", 60)
    findings.expect("Terminate ends its contexts under the PID that it named", ended["code"] == 810)
    wait_until("it is signalled", lambda: "ProcessEnded" in parts.reasons(tenant, "forge-again"), TOLD_SECONDS)
    return {"code": ended["code"], "told": parts.reasons(tenant, "forge-again")}


def _pod(tenant: Tenant, way: str, library: str) -> Object:
    environment = [{"name": "PROGRAM", "value": PROGRAM}, {"name": "LIBRARY", "value": library}]
    environment.append({"name": "CROWD", "value": str(CROWD)})
    command = [sys.executable, "-c", PROGRAM, way]
    pod: Object = json.loads(json.dumps(tenant.pod(way, SHARE, command=command, env=environment)))
    del pod["spec"]["securityContext"]["seccompProfile"]
    return pod


def _compiled() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        source, library = Path(name) / "attack.c", Path(name) / "attack.so"
        source.write_text(LIBRARY)
        subprocess.run(
            ["cc", "-O1", "-s", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl", "-lpthread"],
            check=True,
            timeout=60,
        )
        return library.read_bytes()
