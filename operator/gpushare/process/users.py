"""The user of each part, and how the attach broker becomes its own. `charts/gpushare/templates/_helpers.tpl` and the
Dockerfile have the same numbers.

The kernel counts some things for each user of the node, over all containers: descriptors under way on sockets, what is
watched by epoll, pages of pipes, processes. So each part that is not root has a user that nobody else has by
accident. None of these ranges contains one:

- 0 to 65535: images' users, `nobody`, systemd's DynamicUser (systemd.io/UIDS-GIDS);
- 65536 to 65536 × (pods of the node + 1), the kubelet's user namespaces, where no user `kubelet` has others in
  /etc/subuid, whose ranges useradd takes from 100000 to 600100000;
- 0x80000 to 0x6FFFFFFF, systemd's containers; 1000000000 to 1999999999, OpenShift's namespaces;
- 200000 to 2000200000, SSSD's for the accounts of a directory;
- 0x7FFE0000 to 0x7FFEFFFF, systemd's foreign users; and above 2147483647, which Kubernetes takes for no user.

That alone keeps nobody out: root of a container that has CAP_SETUID takes any user. So no part may depend on such a
count: event loops are those of `event_loop`, and whoever passes descriptors has CAP_SYS_RESOURCE, which the kernel
exempts (unix(7), ETOOMANYREFS): the containers of the MPS pod.
"""

import ctypes
import os
import struct

OPERATOR = 2_100_000_001
WEBHOOK = 2_100_000_002
PAGE = 2_100_000_003
BROKER = 2_100_000_004
HOOKS = 2_100_000_005
"""The chart's jobs, and `helm test`."""

CAP_SYS_RESOURCE = 24
_PR_SET_KEEPCAPS, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 8, 22, 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION = 0x20080522
_EPERM_ANSWER, _ALLOWED = 0x00050001, 0x7FFF0000
_MACHINES = {"x86_64": (0xC000003E, 302), "aarch64": (0xC00000B7, 261)}
"""The kernel's number of the architecture, and of prlimit64 there."""
_OTHER_ABI = 0x40000000
"""System calls from here on are those of x32."""


def become_broker(groups: list[int]) -> bool:
    """This process, which was started as UID 0, becomes BROKER for good: with CAP_SYS_RESOURCE, with no other
    capability and in no other groups than `groups`. To be called before a thread is started and before anything of
    others is read.

    CAP_SYS_RESOURCE would let it set the limits of every process on the node, too: a filter of its own forbids that.

    Returns whether it has CAP_SYS_RESOURCE: a machine that is itself confined may have none to give.

    Raises OSError where it cannot become BROKER; the process is then not to go on.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _prctl(libc, _PR_SET_NO_NEW_PRIVS, 1)
    _prctl(libc, _PR_SET_KEEPCAPS, 1)
    os.setgroups(groups)
    os.setresgid(BROKER, BROKER, BROKER)
    os.setresuid(BROKER, BROKER, BROKER)
    _prctl(libc, _PR_SET_KEEPCAPS, 0)
    kept = _keep_one_capability(libc, CAP_SYS_RESOURCE)
    _forbid_limits_of_others(libc)
    return kept


def _keep_one_capability(libc: ctypes.CDLL, number: int) -> bool:
    """Gives up all others. False: it was not there to be kept."""
    header, data = struct.pack("=Ii", _CAPABILITY_VERSION, 0), ctypes.create_string_buffer(struct.calcsize("=6I"))
    _check(libc.capget(header, data), "capget")
    _, permitted, *_ = struct.unpack("=6I", data.raw)
    kept = permitted & 1 << number
    _check(libc.capset(header, struct.pack("=6I", kept, kept, 0, 0, 0, 0)), "capset")
    return bool(kept)


def _forbid_limits_of_others(libc: ctypes.CDLL) -> None:
    """prlimit64 for a PID other than 0, the caller's own, is answered with EPERM, and so is what is not of the
    machine's own ABI.
    """
    machine = os.uname().machine
    if machine not in _MACHINES:
        raise OSError(f"the number of prlimit64 is not known on {machine}")
    architecture, prlimit = _MACHINES[machine]
    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06  # BPF_LD|W|ABS, JEQ|K, JGE|K, RET|K
    program = b"".join(
        struct.pack("=HBBI", *step)
        for step in (
            (load, 0, 0, 4),  # seccomp_data.arch
            (equal, 0, 6, architecture),
            (load, 0, 0, 0),  # .nr
            (at_least, 4, 0, _OTHER_ABI),
            (equal, 0, 2, prlimit),
            (load, 0, 0, 16),  # the first argument's lower half, on these little-endian machines
            (equal, 0, 1, 0),
            (answer, 0, 0, _ALLOWED),
            (answer, 0, 0, _EPERM_ANSWER),
        )
    )
    instructions = ctypes.create_string_buffer(program, len(program))
    filtered = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    _prctl(libc, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.c_char_p(filtered))


def _prctl(libc: ctypes.CDLL, *arguments: object) -> None:
    rest = [0] * (5 - len(arguments))
    words = [ctypes.c_ulong(word) if isinstance(word, int) else word for word in (*arguments, *rest)]
    _check(libc.prctl(*words), "prctl")


def _check(answer: int, call: str) -> None:
    if answer:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
