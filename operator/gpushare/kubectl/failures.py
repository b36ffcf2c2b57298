"""What it means when kubectl or the API server answers with an error; and what a user asks for that does not exist,
told with what he may have meant."""

import difflib
import json
import re
from collections.abc import Collection, Iterable
from http import HTTPStatus

from gpushare.kube.resources import KubeError
from gpushare.messages.wording import first_names

FAILED, INTERRUPTED = 2, 130
"""Exit statuses of the plugin."""

_REFUSED = re.compile(r"Error from server(?: \((?P<reason>\w+)\))?: (?P<message>.*)", re.DOTALL)
_INVALID = re.compile(r"The \w+ \".*?\" is invalid: .*", re.DOTALL)
_LOG_LINE = re.compile(r"[EWI]\d{4} \d\d:|Warning: ")
_NO_CONTEXT = re.compile(r"localhost:8080 was refused|dial tcp (127\.0\.0\.1|\[::1\]):8080: .*refused")
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


def of_kubectl(text: str) -> KubeError | UnreachableError:
    """The failure in kubectl's standard error. The messages that it has of its own, such as for a wrong context,
    stay."""
    said = "\n".join(line for line in text.strip().splitlines() if not _LOG_LINE.match(line))
    if refused := _REFUSED.fullmatch(said):
        reason = refused["reason"] or ""
        return KubeError(_STATUS.get(reason, HTTPStatus.INTERNAL_SERVER_ERROR), reason, refused["message"])
    if _INVALID.fullmatch(said):
        return KubeError(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", said)
    return unreachable(said.removeprefix("error: "))


def of_answer(status: int, text: str) -> KubeError | UnreachableError:
    """The failure in an answer of `kubectl proxy`: that of the API server, or its own where it did not reach one."""
    if status == HTTPStatus.UNAUTHORIZED:
        return unreachable("the API server does not accept the context's credentials (Unauthorized)")
    try:
        status_object = json.loads(text)
    except ValueError:
        status_object = None
    if isinstance(status_object, dict) and status_object.get("kind") == "Status":
        return KubeError(status, str(status_object.get("reason") or ""), str(status_object.get("message") or ""))
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return unreachable(text)
    reason = "NotFound" if status == HTTPStatus.NOT_FOUND else ""
    return KubeError(status, reason, " ".join(text.split())[:200] or "no reason given")


def unreachable(why: str) -> UnreachableError:
    if _NO_CONTEXT.search(why):
        return UnreachableError(
            "no cluster: kubectl has no context; set KUBECONFIG or --kubeconfig, or choose one of `kubectl config "
            "get-contexts` with --context"
        )
    words = " ".join(why.split())[:500]
    if words == _NO_INPUT:
        words = "the context has no credentials"
    return UnreachableError(f"no cluster: {words or 'kubectl failed without a word'}")


class WrongInputError(Exception):
    """The text names the value, and what to do."""


def unknown(kind: str, name: str, known: Collection[str] | None) -> WrongInputError:
    """`known`: those that there are; None where they cannot be listed."""
    return WrongInputError(f'{kind} "{name}" not found{_suggestion(name, known)}')


def require(kind: str, name: str, known: Iterable[str]) -> None:
    """Raises WrongInputError where `name` is none of `known`."""
    names = list(known)
    if name not in names:
        raise unknown(kind, name, names)


def _suggestion(name: str, known: Collection[str] | None) -> str:
    if known is None:
        return ""
    if not known:
        return "; there is none"
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f'; did you mean "{close[0]}"?'
    return f"; there are {first_names(sorted(known), 5)}"
