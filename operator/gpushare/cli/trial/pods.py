"""What the pods of a case say about it: whether they run, how they ended, and what they have printed. Pure."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from gpushare.trial.cases import CaseEnded, Ending
from gpushare.trial.printed import PrintedFigures, PrintedLine, ended_early, last_lines

Object = dict[str, Any]

STAMPED = re.compile(r"(\d{4}-\d\d-\d\dT\S+) (.*)")


def read_log(text: str, printed: PrintedFigures) -> list[PrintedLine]:
    """The lines with figures of a log whose lines begin with their time, as `kubectl logs --timestamps` prints it."""
    found = []
    for line in text.splitlines():
        match = STAMPED.match(line)
        if match is None:
            continue
        try:
            at = datetime.fromisoformat(match[1]).timestamp()
        except ValueError:
            continue
        if (read := printed.read(at, match[2])) is not None:
            found.append(read)
    return found


def tail_of(text: str) -> str:
    """The end of such a log, without the times."""
    return last_lines(match[2] if (match := STAMPED.match(line)) else line for line in text.splitlines())


def container_status(pod: Object, container: str) -> Object:
    """That container's status; empty while there is none."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((one for one in statuses if one.get("name") == container), {})


def started(pods: Sequence[Object], container: str, copies: int) -> bool:
    """Whether every copy runs or has run."""
    states = [container_status(pod, container).get("state") or {} for pod in pods]
    return len(pods) == copies and all("running" in state or "terminated" in state for state in states)


def run_seconds(pod: Object, container: str) -> float | None:
    """How long that container ran; None while it has not ended. Kubernetes tells whole seconds."""
    ended = (container_status(pod, container).get("state") or {}).get("terminated")
    if not ended or not ended.get("startedAt") or not ended.get("finishedAt"):
        return None
    begin, end = (datetime.fromisoformat(ended[key]).timestamp() for key in ("startedAt", "finishedAt"))
    return max(1.0, end - begin)


def waiting_for(pods: Sequence[Object], container: str) -> str:
    """Why a copy does not run yet, in Kubernetes' words; empty if it gives no reason."""
    for pod in pods:
        for condition in (pod.get("status") or {}).get("conditions") or []:
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                return f"pod {pod['metadata']['name']}: {condition.get('message') or condition.get('reason')}"
        waiting = (container_status(pod, container).get("state") or {}).get("waiting") or {}
        if waiting.get("message"):
            return f"pod {pod['metadata']['name']}: {waiting.get('reason')}: {waiting['message']}"
    return ""


def ended_badly(pod: Object, container: str, log: str, to_the_end: bool) -> CaseEnded | None:
    """Why the case is over, if this pod has ended and should not have. `to_the_end`: an exit with 0 is wanted."""
    status = pod.get("status") or {}
    ended = (container_status(pod, container).get("state") or {}).get("terminated")
    if ended is None:
        if status.get("phase") != "Failed":
            return None
        why = status.get("message") or status.get("reason") or "without a reason"
        return CaseEnded(Ending.FAILED, f"pod {pod['metadata']['name']} failed: {why}")
    code = ended.get("exitCode", 0)
    if code == 0 and to_the_end:
        return None
    return ended_early("a copy", f"exited with code {code}", code, tail_of(log))
