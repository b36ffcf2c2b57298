"""One page of memory for one process: a memfd of one size, which it maps, and which its broker reads.

The broker opens it again by /proc for each purpose, and keeps one description for itself: a setting of one that others
have is theirs to change. By its own the kernel tells whether a page is kept by somebody, which is memory of ours.
"""

import fcntl
import os
import signal

from gpushare.mps.pages.layout import HEAD, PAGE_BYTES, VERSION

F_SEAL_FUTURE_WRITE = 0x10
"""No mapping for writing and no write from then on; the module fcntl does not name it yet."""


class Page:
    """`shared`: others read it, too. OSError: there is no descriptor or no memory for it."""

    def __init__(self, name: str, magic: int, *, shared: bool = False) -> None:
        self._lease = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
        self._descriptors: list[int] = []
        memfd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(memfd, PAGE_BYTES)
            fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            os.pwrite(memfd, HEAD.pack(magic, VERSION), 0)
            self._own = self._opened(memfd, os.O_RDONLY if shared else os.O_RDWR)
            self.to_read = self._opened(memfd, os.O_RDONLY) if shared else -1
            """For others. It belongs to the page."""
            self._to_write = self._opened(memfd, os.O_RDWR)
        except OSError:
            self.close()
            raise
        finally:
            os.close(memfd)

    def _opened(self, memfd: int, access: int) -> int:
        self._descriptors.append(os.open(f"/proc/self/fd/{memfd}", access | os.O_CLOEXEC))
        return self._descriptors[-1]

    def take_to_write(self) -> int:
        """The descriptor for its process, once; the caller closes it."""
        self._descriptors.remove(self._to_write)
        return self._to_write

    def content(self) -> bytes:
        return os.pread(self._own, PAGE_BYTES, 0)

    def is_sealed(self) -> bool:
        """Whether nobody writes it any more, but by the mappings that are there."""
        return bool(fcntl.fcntl(self._own, fcntl.F_GET_SEALS) & F_SEAL_FUTURE_WRITE)

    def is_kept(self) -> bool:
        """Whether somebody else has it open or mapped; one that is shared: for writing.

        Who asks for a lease on a file is refused while that is so. (Where the kernel counts no readers, CONFIG_IMA, one
        who has it open for reading alone is not seen.)
        """
        # Whoever opens it in the midst of this has a signal sent to us: the one by default would end this process.
        fcntl.fcntl(self._own, fcntl.F_SETSIG, signal.SIGURG)
        try:
            fcntl.fcntl(self._own, fcntl.F_SETLEASE, self._lease)
        except BlockingIOError:
            return True
        except OSError:  # there are no leases here
            return False
        fcntl.fcntl(self._own, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return False

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())
