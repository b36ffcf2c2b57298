"""The cluster as kubectl reaches it: each question is one run of `kubectl`, with the user's own context and rights.

So credentials, exec plugins, proxies and versions are kubectl's matter, and no HTTP client has to be imported.
Questions run beside one another and beside our imports: each gives a Future. None takes longer than PROCESS_SECONDS.
"""

import json
import re
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

from gpushare.kube.resources import PODS, KubeError, Object, Resource

AT_ONCE = 16
"""Runs of kubectl at a time."""
REQUEST_SECONDS = 15
PROCESS_SECONDS = 25
"""More than a request: the credentials' own program may need some."""
Found = TypeVar("Found")

IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_REFUSED = re.compile(r"Error from server(?: \((?P<reason>\w+)\))?: (?P<message>.*)", re.DOTALL)
_INVALID = re.compile(r"The \w+ \".*?\" is invalid: .*", re.DOTALL)
_LOG_LINE = re.compile(r"[EWI]\d{4} \d\d:|Warning: ")
_NO_CONTEXT = "localhost:8080 was refused"
"""kubectl asks there where it knows no cluster at all."""
_NO_INPUT = "EOF"
"""kubectl asked for a user's name, and got none from us."""
_STATUS = {
    "NotFound": HTTPStatus.NOT_FOUND,
    "Forbidden": HTTPStatus.FORBIDDEN,
    "Unauthorized": HTTPStatus.UNAUTHORIZED,
    "Conflict": HTTPStatus.CONFLICT,
    "AlreadyExists": HTTPStatus.CONFLICT,
    "Invalid": HTTPStatus.UNPROCESSABLE_ENTITY,
    "BadRequest": HTTPStatus.BAD_REQUEST,
}


class UnreachableError(Exception):
    """kubectl did not reach a cluster. The text is one sentence: why, and what to do where that is known."""


class Cluster:
    """Each method gives a Future; its result raises KubeError where the API server refuses, else UnreachableError."""

    def __init__(self, flags: Sequence[str] = (), program: str = "kubectl") -> None:
        """`flags`: of every run, such as --context=…"""
        self._flags = (*flags, f"--request-timeout={REQUEST_SECONDS}s")
        self._program = program
        self._pool = ThreadPoolExecutor(AT_ONCE)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def items(self, resource: Resource, namespace: str | None = None, **selectors: str) -> Future[list[Object]]:
        """Of a list. `selectors`: labelSelector, fieldSelector."""
        query = f"?{urlencode(selectors)}" if selectors else ""
        return self._start(lambda: list(self._raw(resource.path(namespace) + query).get("items") or ()))

    def find(self, resource: Resource, name: str, namespace: str | None = None) -> Future[Object | None]:
        """The object, or None where there is none."""

        def asked() -> Object | None:
            try:
                return self._raw(resource.path(namespace, name))
            except KubeError as error:
                if error.not_found:
                    return None
                raise

        return self._start(asked)

    def read(self, path: str) -> Future[Object]:
        return self._start(lambda: self._raw(path))

    def namespace(self) -> Future[str]:
        """That of the context in use, or of the pod in which we run, as kubectl takes it."""

        def asked() -> str:
            try:
                view = json.loads(self.run("config", "view", "--minify", "--output=json"))
            except UnreachableError:
                # Without a context kubectl uses the pod's ServiceAccount; where it cannot, each question says why.
                return IN_POD.read_text().strip() if IN_POD.exists() else "default"
            found = (view.get("contexts") or [{}])[0].get("context") or {}
            return str(found.get("namespace") or "default")

        return self._start(asked)

    def proxied(self, namespace: str, pod: str, port: int, path: str) -> Future[str]:
        """What a pod answers to GET, through the API server: needs the right to get pods/proxy."""
        target = PODS.path(namespace, f"{pod}:{port}", "proxy")
        return self._start(lambda: self.run("get", "--raw", f"{target}/{path}"))

    def try_create(self, resource: Resource, body: Object) -> Future[Object]:
        """A dry run: everything is judged, nothing is stored."""
        path = f"{resource.path()}?dryRun=All"
        return self._start(lambda: self._json("create", "--raw", path, "--filename=-", stdin=json.dumps(body)))

    def try_patch(self, resource: Resource, name: str, patch: list[Object]) -> Future[Object]:
        """A dry run of a JSON patch (RFC 6902)."""
        kind = f"{resource.plural}.{resource.group}"
        return self._start(
            lambda: self._json(
                "patch", kind, name, "--type=json", f"--patch={json.dumps(patch)}", "--dry-run=server", "--output=json"
            )
        )

    def run(self, *arguments: str, stdin: str | None = None) -> str:
        """Standard output of one run of kubectl, which is waited for."""
        command = [self._program, *arguments, *self._flags]
        source: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
        try:
            done: subprocess.CompletedProcess[str] = subprocess.run(
                command, capture_output=True, text=True, timeout=PROCESS_SECONDS, **source
            )
        except FileNotFoundError:
            raise UnreachableError(f"no cluster: the program {self._program} is not on the PATH") from None
        except subprocess.TimeoutExpired:
            raise UnreachableError(f"no cluster: kubectl has not answered within {PROCESS_SECONDS} s") from None
        if done.returncode != 0:
            raise failure(done.stderr)
        return done.stdout

    def _raw(self, path: str) -> Object:
        return self._json("get", "--raw", path)

    def _json(self, *arguments: str, stdin: str | None = None) -> Object:
        text = self.run(*arguments, stdin=stdin)
        try:
            answer: Object = json.loads(text)
        except ValueError:
            raise UnreachableError(f"kubectl answered something that is no JSON: {text[:80]!r}") from None
        return answer

    def _start(self, question: Callable[[], Found]) -> Future[Found]:
        return self._pool.submit(question)


def failure(text: str) -> KubeError | UnreachableError:
    """What kubectl's standard error means. The messages it has of its own, such as for a wrong context, stay."""
    said = "\n".join(line for line in text.strip().splitlines() if not _LOG_LINE.match(line))
    if refused := _REFUSED.fullmatch(said):
        reason = refused["reason"] or ""
        return KubeError(_STATUS.get(reason, HTTPStatus.INTERNAL_SERVER_ERROR), reason, refused["message"])
    if _INVALID.fullmatch(said):
        return KubeError(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", said)
    if _NO_CONTEXT in said:
        return UnreachableError(
            "no cluster: kubectl has no context; set KUBECONFIG or --kubeconfig, or choose one of `kubectl config "
            "get-contexts` with --context"
        )
    words = " ".join(said.removeprefix("error: ").split())
    if words == _NO_INPUT:
        words = "the context has no credentials"
    return UnreachableError(f"no cluster: {words or 'kubectl failed without a word'}")


def optional(asked: Future[list[Object]]) -> list[Object] | None:
    """The list; None where the user may not read it, or the API server does not serve it."""
    try:
        return asked.result()
    except KubeError as error:
        if error.not_found or error.status == HTTPStatus.FORBIDDEN:
            return None
        raise


def installed(asked: Future[list[Object]]) -> list[Object]:
    """The list of a kind of gpushare's own; UnreachableError says so where the cluster has no such kind."""
    try:
        return asked.result()
    except KubeError as error:
        if error.not_found:
            raise UnreachableError(
                "gpushare is not installed in this cluster: it has no GpuShares; `kubectl config current-context` says "
                "which cluster it is"
            ) from None
        raise
