"""Where the API server is, how it is trusted, and as whom it is asked.

Guarantees: in a pod, address, certificate authority and token are the service account's, as the kubelet provides them,
and the token's file is read again every minute, since the kubelet replaces it before it expires. That needs no library:
the Kubernetes client takes 12 MiB of each process. Elsewhere it reads the kubeconfig, which has many more forms; the
images contain neither.
"""

import os
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_SECONDS = 60.0
"""How long a token is taken from memory, as in client-go."""


class AccessError(Exception):
    """There is no way to the API server. The text says what is missing."""


@dataclass(frozen=True, slots=True)
class Access:
    """`server`: a URL without a path. `tls`: None for one without TLS. `authorization`: the header's value, or ""."""

    server: str
    tls: ssl.SSLContext | None
    authorization: Callable[[], Awaitable[str]]
    tls_server_name: str = ""
    proxy: str = ""


class ServiceAccount:
    """Of the pod that this process runs in."""

    def __init__(self, server: str, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """AccessError: a file is missing or empty."""
        self.server = server
        self.ca_file = directory / "ca.crt"
        self._token_file = directory / "token"
        self._clock = clock
        if not _content(self.ca_file):
            raise AccessError(f"{self.ca_file} is missing or empty: the pod has no service account")
        self._token = _content(self._token_file)
        self._read_at = clock()
        if not self._token:
            raise AccessError(f"{self._token_file} is missing or empty: the pod has no service account")

    def token(self) -> str:
        """The newest one that could be read: the API server judges it."""
        if self._clock() - self._read_at >= TOKEN_SECONDS:
            self._token = _content(self._token_file) or self._token
            self._read_at = self._clock()
        return self._token

    def access(self) -> Access:
        async def authorization() -> str:
            return f"Bearer {self.token()}"

        return Access(self.server, ssl.create_default_context(cafile=str(self.ca_file)), authorization)


def service_account(
    environ: Mapping[str, str] = os.environ, directory: Path = SERVICE_ACCOUNT
) -> ServiceAccount | None:
    """None: this process runs in no pod. AccessError: in one without a service account."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host:
        return None
    if not port:
        raise AccessError("KUBERNETES_SERVICE_PORT is not set, though KUBERNETES_SERVICE_HOST is")
    return ServiceAccount(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}", directory)


async def find_access(environ: Mapping[str, str] = os.environ) -> Access:
    """In a pod its service account, elsewhere KUBECONFIG or ~/.kube/config. AccessError."""
    account = service_account(environ)
    return await kubeconfig_access() if account is None else account.access()


async def kubeconfig_access(path: Path | None = None) -> Access:
    """Of the current context. `path`: KUBECONFIG or ~/.kube/config where None. AccessError."""
    try:
        from kubernetes.aio import client, config
        from kubernetes.aio.client import rest
    except ImportError as error:
        raise AccessError(
            "outside of a pod the Kubernetes client is needed: pip install 'gpushare[kubeconfig]'"
        ) from error
    configuration = client.Configuration()
    try:
        await config.load_kube_config(
            config_file=None if path is None else str(path), client_configuration=configuration
        )
    except config.ConfigException as error:
        raise AccessError(f"the kubeconfig cannot be used: {error}") from error

    async def authorization() -> str:
        return await configuration.get_api_key_with_prefix("BearerToken", alias="authorization") or ""

    return Access(
        configuration.host.rstrip("/"),
        rest.RESTClientObject(configuration).ssl_context,
        authorization,
        configuration.tls_server_name or "",
        configuration.proxy or "",
    )


def _content(path: Path) -> str:
    """Empty where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
