"""Open files: an MPS server needs several per client, and a limit that is too low shows only at the n-th client."""

import resource

ENOUGH = 65536
"""More is never needed, and some programs close every descriptor up to the limit one by one."""
LEAST = 4096


def raise_nofile() -> str:
    """Raise this process's soft limit, which its children inherit. A sentence when even the hard one is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reachable = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < reachable:
        resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    return nofile_remark(hard)


def nofile_remark(hard: int) -> str:
    if hard == resource.RLIM_INFINITY or hard >= LEAST:
        return ""
    return f"NofileTooLow: the container may open {hard} files, not {LEAST}; raise LimitNOFILE of the container runtime"
