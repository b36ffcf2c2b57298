"""How servers' certificates are verified, by every client of ours: as client-go does, so that whoever kubectl and the
kubelet trust is trusted here.

Chain, dates and host name are verified. X.509's strict rules are not: the authorities of some clusters have no key
identifiers, or no critical constraints, and since Python 3.13 they would be refused. An authority that another one
signed is enough by itself, which Python before 3.13 would refuse.

Of the standard library alone: a program that imports this starts quickly.
"""

import logging
import ssl
from pathlib import Path

LOG = logging.getLogger(__name__)


def as_client_go(context: ssl.SSLContext) -> ssl.SSLContext:
    """The same context, which verifies as client-go does."""
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


class AuthorityFile:
    """The file of the certificates that servers are verified by.

    The kubelet replaces it together with the token, mostly by the same content: that is no change.
    """

    def __init__(self, path: str | None) -> None:
        """None: the system's certificates, or none, which do not change."""
        self._path = path and Path(path)
        self._seen: tuple[int, int, int] | None = None
        self._content = b""
        self.changed()

    def __str__(self) -> str:
        return f"the certificate authority in {self._path}"

    def changed(self) -> bool:
        """Whether it has another content than at the last look. A file that cannot be read has not changed."""
        if not self._path:
            return False
        try:
            status = self._path.stat()
            seen = status.st_ino, status.st_mtime_ns, status.st_size
            content = self._content if seen == self._seen else self._path.read_bytes()
        except OSError:
            return False
        before, self._seen, self._content = self._content, seen, content
        return content != before


class Trust:
    """A context for each new connection, by what the file holds by then. Safe to use from many threads."""

    def __init__(self, path: Path) -> None:
        """OSError: the file cannot be read; ssl.SSLError, which is one: it holds no certificates."""
        self._path = path
        self._authority = AuthorityFile(str(path))
        self._context = _verifying(path)

    def context(self) -> ssl.SSLContext:
        """That of before where the file has none."""
        if self._authority.changed():
            try:
                self._context = _verifying(self._path)
            except OSError as error:
                LOG.warning("%s holds no certificates, so those read before are used: %s", self._authority, error)
        return self._context


def _verifying(path: Path) -> ssl.SSLContext:
    return as_client_go(ssl.create_default_context(cafile=str(path)))
