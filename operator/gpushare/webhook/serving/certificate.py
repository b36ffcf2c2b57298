"""The serving certificate: read from its Secret through the API, renewed in the running server without a restart.

The key never touches a disk: OpenSSL reads it from an anonymous memory file.
"""

import base64
import logging
import os
import ssl
from datetime import datetime

from cryptography import x509

from gpushare.kube.cache.reflector import Reflector
from gpushare.kube.client import SECRETS, Kube

LOG = logging.getLogger(__name__)


class LiveCertificate:
    """`context` serves the newest usable chain: a broken Secret leaves the previous one in use.

    `client_authority`: certificates as PEM; clients must show one that these have signed. Empty: they show none.
    Raises ValueError where it cannot be read.
    """

    def __init__(self, client_authority: str = "") -> None:
        self.context = _server_context()
        if client_authority:
            self.context.verify_mode = ssl.CERT_REQUIRED
            try:
                self.context.load_verify_locations(cadata=client_authority)
            except (ssl.SSLError, ValueError) as error:
                raise ValueError(f"the clients' authority is no certificate in PEM: {error}") from None
        self.not_after: datetime | None = None
        """The end of the served certificate; None before the first chain."""
        self._chain = b""

    @property
    def loaded(self) -> bool:
        return self.not_after is not None

    def load(self, data: dict[str, str]) -> bool:
        """Takes a Secret's `data` (base64 `tls.crt` and `tls.key`). True: a new chain is served from now on."""
        try:
            certificates = base64.b64decode(data["tls.crt"])
            chain = base64.b64decode(data["tls.key"]) + b"\n" + certificates
            if chain == self._chain:
                return False
            _load(_server_context(), chain)  # so that a bad pair never reaches the live context
            serving = x509.load_pem_x509_certificate(certificates)  # the first one
        except (KeyError, ValueError, ssl.SSLError) as error:
            LOG.error("the webhook's certificate Secret is not usable, keeping the loaded one: %s", error)
            return False
        _load(self.context, chain)
        self._chain = chain
        self.not_after = serving.not_valid_after_utc
        return True


class CertificateSource:
    """Follows one Secret into a LiveCertificate."""

    def __init__(self, kube: Kube, namespace: str, secret: str, client_authority: str = "") -> None:
        self.certificate = LiveCertificate(client_authority)
        self._reflector = Reflector(
            kube, SECRETS, self._changed, namespace=namespace, fieldSelector=f"metadata.name={secret}"
        )

    async def run(self) -> None:
        await self._reflector.run()

    def _changed(self) -> None:
        for secret in self._reflector.objects.values():
            if self.certificate.load(secret.get("data") or {}):
                LOG.info("serving the certificate of Secret %s", secret["metadata"]["name"])


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _load(context: ssl.SSLContext, chain: bytes) -> None:
    """OpenSSL takes files only. Raises ssl.SSLError where key and certificate do not belong together."""
    memory = os.memfd_create("webhook-certificate")
    try:
        with os.fdopen(os.dup(memory), "wb") as file:
            file.write(chain)
        context.load_cert_chain(f"/proc/self/fd/{memory}")
    finally:
        os.close(memory)
