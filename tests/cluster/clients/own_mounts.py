"""Runs in a container with a slot: leaves what the runtime mounted, for mounts of its own.

    own_mounts.py DOUBLINGS

Makes a user and a mount namespace, as anybody may whose seccomp profile allows it, and takes a tmpfs as its root.
There it doubles its mounts so many times: 16 are as many as the kernel allows. Then it says so, and waits.
"""

import ctypes
import json
import os
import sys
import time
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 0x1000, 0x4000, 0x40000, 2
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
libc = ctypes.CDLL(None, use_errno=True)


def check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


user, group = os.getuid(), os.getgid()
check(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS))
Path("/proc/self/setgroups").write_text("deny")
Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
check(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
os.chdir("/tmp")
Path("old").mkdir()
check(libc.syscall(SYS_PIVOT_ROOT, b".", b"old"))
os.chdir("/")
check(libc.umount2(b"/old", MNT_DETACH))
mounts = 1
for number in range(int(sys.argv[1])):
    place = f"/{number:0250}"  # long, and nested by the doubling: what is read has hundreds of MiB
    Path(place).mkdir()
    if libc.mount(b"/", place.encode(), None, MS_BIND | MS_REC, None):
        break  # fs.mount-max
    mounts *= 2
print(json.dumps({"event": "pivoted", "mounts": mounts}), flush=True)
time.sleep(3600)
