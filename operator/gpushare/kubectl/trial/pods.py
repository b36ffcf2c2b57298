"""What the pods of a case say about it: whether they run, how they ended, and what they have printed. Pure."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpushare.kubectl.rules.trial.cases import CaseEnded, Ending
from gpushare.kubectl.rules.trial.printed import PrintedFigures, PrintedLine, ended_early, last_lines

Object = dict[str, Any]

JOB_LABEL = "batch.kubernetes.io/job-name"
"""Kubernetes', on each pod of a Job."""
STAMPED = re.compile(r"(\d{4}-\d\d-\d\dT\S+) (.*)")


def read_log(text: str, printed: PrintedFigures) -> list[PrintedLine]:
    """The lines with figures of a log whose lines begin with their time, as `kubectl logs --timestamps` prints it."""
    lines = []
    for line in text.splitlines():
        match = STAMPED.match(line)
        if match is None:
            continue
        try:
            at = datetime.fromisoformat(match[1]).timestamp()
        except ValueError:
            continue
        if (read := printed.read(at, match[2])) is not None:
            lines.append(read)
    return lines


def tail_of(text: str) -> str:
    """The end of such a log, without the times."""
    return last_lines(match[2] if (match := STAMPED.match(line)) else line for line in text.splitlines())


@dataclass(frozen=True, slots=True)
class CopyPod:
    """The pod of one copy. `program`: its place among those of the trial; `told`: that program in a message, empty
    where the trial has one; `container`: the one whose figures count; `body`: as the API server gave it.
    """

    program: int
    told: str
    container: str
    body: Object

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def who(self) -> str:
        """The pod in a message."""
        return f"pod {self.name}" + (f" of {self.told}" if self.told else "")

    @property
    def node(self) -> str:
        """The name of the pod's node; empty before the pod is bound."""
        return str((self.body.get("spec") or {}).get("nodeName") or "")

    @property
    def phase(self) -> str:
        return str((self.body.get("status") or {}).get("phase", ""))

    @property
    def started(self) -> bool:
        """Whether the copy runs or has run."""
        state = self._container.get("state") or {}
        return "running" in state or "terminated" in state

    @property
    def run(self) -> tuple[float, float] | None:
        """The begin and the end of the copy in seconds of the epoch; None while it has not ended.

        Kubernetes tells whole seconds, so the shortest run takes one.
        """
        ended = (self._container.get("state") or {}).get("terminated")
        if not ended or not ended.get("startedAt") or not ended.get("finishedAt"):
            return None
        begin, end = (datetime.fromisoformat(ended[key]).timestamp() for key in ("startedAt", "finishedAt"))
        return begin, max(begin + 1.0, end)

    @property
    def waits_for(self) -> str:
        """Why the copy does not run yet, in Kubernetes' words; empty if it gives no reason."""
        for condition in (self.body.get("status") or {}).get("conditions") or []:
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                return str(condition.get("message") or condition.get("reason"))
        waiting = (self._container.get("state") or {}).get("waiting") or {}
        return f"{waiting.get('reason')}: {waiting['message']}" if waiting.get("message") else ""

    def ended_badly(self, log: str, to_the_end: bool, figures: bool) -> CaseEnded | None:
        """Why the case is over, if this pod has ended and should not have. `to_the_end`: an exit with 0 is wanted.
        `figures`: a line of its log had one.
        """
        ended = (self._container.get("state") or {}).get("terminated")
        if ended is None:
            if self.phase != "Failed":
                return None
            status = self.body["status"]
            why = status.get("message") or status.get("reason") or "without a reason"
            return CaseEnded(Ending.FAILED, f"{self.who} failed: {why}")
        code = ended.get("exitCode", 0)
        if code == 0 and to_the_end:
            return None
        return ended_early(self.told or "a copy", f"exited with code {code}", code, tail_of(log), figures)

    @property
    def _container(self) -> Object:
        """The status of that container; empty while there is none."""
        statuses = (self.body.get("status") or {}).get("containerStatuses") or []
        return next((status for status in statuses if status.get("name") == self.container), {})
