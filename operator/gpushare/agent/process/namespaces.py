"""Who made the mount namespace in which a process is: the runtime for its container, or the process for itself.

A process without privileges gets a mount namespace of its own by making a user namespace first, which then owns it. The
one that the runtime made is owned by the node's user namespace, or in a pod with `hostUsers: false` by the pod's, which
is the node's child. So the depth of the owner tells the two apart, and nothing that a process may do changes it.

Not guaranteed where the agent may not look at other users' namespaces, as with `gpuAccess: RuntimeClass`: the kernel
asks for CAP_SYS_PTRACE.
"""

import fcntl
import os
from pathlib import Path

from gpushare.process.bounded_read import GONE
from gpushare.process.procfs import PROC

NS_GET_USERNS, NS_GET_PARENT = 0xB701, 0xB702
"""ioctl_ns(2)."""
MAX_DEPTH = 32
"""The kernel's own bound of nested user namespaces."""


def read_mount_depth(pid: int, proc: Path = PROC) -> int | None:
    """How many user namespaces below ours the owner of the process' mount namespace is; 0: ours is it. None: there is
    no such process (any more). OSError: that is not known.
    """
    ours = (PROC / "self/ns/user").stat().st_ino
    try:
        descriptor = os.open(proc / str(pid) / "ns" / "mnt", os.O_RDONLY | os.O_CLOEXEC)
    except GONE:
        return None
    request = NS_GET_USERNS
    try:
        for depth in range(MAX_DEPTH + 1):
            above = fcntl.ioctl(descriptor, request)
            os.close(descriptor)
            descriptor = above
            if os.fstat(descriptor).st_ino == ours:
                return depth
            request = NS_GET_PARENT
    finally:
        os.close(descriptor)
    return MAX_DEPTH + 1
