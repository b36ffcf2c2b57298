"""The limit of open files. An MPS server needs several per client, so a low limit shows only at some later client."""

import resource

MAX_OPEN_FILES = 65536
"""More is never needed, and some programs close all descriptors up to the limit, one by one."""
MIN_OPEN_FILES = 4096


def raise_nofile() -> str:
    """Raise this process's soft limit, which its children inherit. Returns a warning if the hard limit is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reachable = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < reachable:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    return nofile_remark(hard)


def nofile_remark(hard: int) -> str:
    if hard == resource.RLIM_INFINITY or hard >= MIN_OPEN_FILES:
        return ""
    reason = f"the container may open {hard} files, not {MIN_OPEN_FILES}"
    return f"NofileTooLow: {reason}; raise LimitNOFILE of the container runtime"
