"""GET requests to the API server, as bytes or line by line, each with a time limit and a largest answer.

On a user's machine they go through `kubectl proxy`, so with the kubeconfig's credentials, at a Unix socket that only
the user reaches; the proxy refuses everything but GET. In a pod they go with its ServiceAccount's token.
"""

import json
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from urllib.parse import urlencode

from gpushare.kube.resources import PODS, KubeError, Object
from gpushare.kubectl.failures import UnreachableError
from gpushare.kubectl.proxy import Proxy

REQUEST_SECONDS = 15.0
MOST_BYTES = 32 * 1024 * 1024
MOST_METRICS_BYTES = 4 * 1024 * 1024
_CHANGING = "^(POST|PUT|PATCH|DELETE|OPTIONS|HEAD|CONNECT|TRACE)$"


class ApiReader:
    """Each request has a connection of its own, so it is safe to use from many threads."""

    def __init__(self, connect: Callable[[float], HTTPConnection], headers: Callable[[], Mapping[str, str]]) -> None:
        """`connect`: takes the time limit, in seconds, of each step. `headers`: of each request, made anew for each."""
        self._connect = connect
        self.headers = headers

    def get(self, path: str, query: Mapping[str, str] | None = None, most: int = MOST_BYTES) -> bytes:
        """Raises KubeError where the API server refuses, UnreachableError where it does not answer, or with too much"""
        with self._answer(path, query, REQUEST_SECONDS) as response:
            body = response.read(most + 1)
        if len(body) > most:
            raise UnreachableError(f"the answer to {path} has more than {most} bytes")
        return body

    def read(self, path: str, query: Mapping[str, str] | None = None) -> Object:
        """Raises as `get`."""
        try:
            answer = json.loads(self.get(path, query))
        except ValueError:
            raise UnreachableError(f"the answer to {path} is no JSON") from None
        if not isinstance(answer, dict):
            raise UnreachableError(f"the answer to {path} is no object")
        return answer

    def lines(self, path: str, query: Mapping[str, str], seconds: float) -> Iterator[bytes]:
        """Each line as it comes, until the API server ends the answer or nothing has come for `seconds`."""
        with self._answer(path, query, seconds) as response:
            while True:
                try:
                    line = response.readline(MOST_BYTES)
                except (OSError, HTTPException, ValueError) as error:
                    raise UnreachableError(f"the watch of {path} broke off: {error}") from None
                if not line.endswith(b"\n"):
                    return
                yield line

    def metrics(self, namespace: str, pod: str, port: int) -> str:
        """The metrics of a pod, through the API server: needs the right to get pods/proxy. Raises as `get`."""
        path = PODS.path(namespace, f"{pod}:{port}", "proxy")
        return self.get(f"{path}/metrics", most=MOST_METRICS_BYTES).decode(errors="replace")

    @contextmanager
    def _answer(self, path: str, query: Mapping[str, str] | None, seconds: float) -> Iterator[HTTPResponse]:
        connection = self._connect(seconds)
        try:
            try:
                target = f"{path}?{urlencode(query)}" if query else path
                connection.request("GET", target, headers=dict(self.headers()))
                response = connection.getresponse()
                refusal = response.read(64 * 1024) if response.status >= HTTPStatus.BAD_REQUEST else b""
            except (OSError, HTTPException) as error:
                raise UnreachableError(f"no cluster: {error}") from None
            if response.status >= HTTPStatus.BAD_REQUEST:
                raise _refused(response.status, refusal)
            try:
                yield response
            except (OSError, HTTPException) as error:
                raise UnreachableError(f"no cluster: the answer broke off: {error}") from None
        finally:
            connection.close()


def _refused(status: int, body: bytes) -> KubeError | UnreachableError:
    try:
        answer = json.loads(body)
        return KubeError(status, str(answer["reason"]), str(answer.get("message", "")))
    except (ValueError, LookupError, TypeError):
        text = " ".join(body[:400].decode(errors="replace").split())
        if status == HTTPStatus.BAD_GATEWAY:  # kubectl proxy says so where it reaches no API server
            return UnreachableError(f"no cluster: {text}")
        return KubeError(status, "", text)


@contextmanager
def through_kubectl(flags: Sequence[str], program: str = "kubectl") -> Iterator[ApiReader]:
    """`flags`: such as --context=…. Raises UnreachableError where kubectl has no cluster; ends its proxy at the end."""
    proxy = Proxy(program, [f"--reject-methods={_CHANGING}", *flags])
    try:
        proxy.wait_ready()
        yield ApiReader(proxy.connection, dict)
    finally:
        proxy.close()


SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def of_a_pod(host: str, port: int, account: Path = SERVICE_ACCOUNT) -> ApiReader:
    """The API server as a pod sees it. The token is read for each request, since the kubelet renews it."""
    tls = ssl.create_default_context(cafile=str(account / "ca.crt"))
    return ApiReader(
        lambda seconds: HTTPSConnection(host, port, timeout=seconds, context=tls),
        lambda: {"Authorization": f"Bearer {(account / 'token').read_text().strip()}"},
    )
