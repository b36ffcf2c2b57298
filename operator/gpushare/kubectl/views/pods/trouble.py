"""Why a pod does not run, in Kubernetes' words, and what to do about it. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpushare.kube.pods import Pod, container_statuses, containers, full_name, is_running, phase

NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
STARTING = ("ContainerCreating", "PodInitializing")


@dataclass(frozen=True, slots=True)
class Trouble:
    """`cause`: the reason and what it is about; `container`: empty where it is the whole pod's."""

    reason: str
    cause: str
    hint: str
    container: str = ""


def trouble(pod: Pod) -> Trouble | None:
    """The first that keeps the pod from running or from being ready; None where nothing does."""
    status = pod.get("status") or {}
    if phase(pod) == "Failed" and status.get("reason"):
        return Trouble(str(status["reason"]), _said(status), "its controller makes a new pod; create a bare one again")
    scheduled = next(
        (condition for condition in status.get("conditions") or () if condition.get("type") == "PodScheduled"), None
    )
    if scheduled is not None and scheduled.get("status") == "False":
        return Trouble(str(scheduled.get("reason") or "Unschedulable"), _said(scheduled), "")
    return next(_of_containers(pod), None)


def _of_containers(pod: Pod) -> Iterator[Trouble]:
    images = {str(listed.get("name")): str(listed.get("image") or "") for listed in containers(pod, ephemeral=True)}
    namespace, name = full_name(pod).split("/")
    for status in container_statuses(pod):
        container = str(status.get("name"))
        logs = f"kubectl logs -n {namespace} {name} -c {container}"
        state = status.get("state") or {}
        if waiting := state.get("waiting"):
            yield _waiting(waiting, status, container, images.get(container, ""), logs)
        elif (ended := state.get("terminated")) and ended.get("exitCode"):
            yield Trouble(str(ended.get("reason") or "Error"), _ended(ended, container), logs, container)
        elif is_running(status) and not status.get("ready") and container in _main_containers(pod):
            yield Trouble("NotReady", f"NotReady: container {container} runs, and its probe fails", logs, container)


def _waiting(waiting: dict[str, Any], status: Any, container: str, image: str, logs: str) -> Trouble:
    reason = str(waiting.get("reason") or "Waiting")
    if reason in NO_IMAGE:
        said = str(waiting.get("message") or "").removeprefix(f'Back-off pulling image "{image}"').lstrip(": ")
        hint = "push the image to where the node can pull it, or correct its name or pull secret"
        return Trouble(reason, f"{reason} {image}{f': {said}' if said else ''}", hint, container)
    last = (status.get("lastState") or {}).get("terminated")
    if reason == "CrashLoopBackOff" and last:
        return Trouble(reason, f"{reason}: {_ended(last, container)}", f"{logs} --previous", container)
    if reason in STARTING:
        return Trouble(reason, f"{reason}: container {container} is being started", "", container)
    return Trouble(reason, _said(waiting), "", container)


def _ended(ended: dict[str, Any], container: str) -> str:
    why = f" ({ended['reason']})" if ended.get("reason") not in (None, "Error") else ""
    # Of several lines, such as the end of a log, the last one says why.
    message = str(ended.get("message") or "").strip().rpartition("\n")[2]
    said = f": {message}" if message else ""
    return f"container {container} ended with exit code {ended.get('exitCode')}{why}{said}"


def _said(part: Any) -> str:
    return ": ".join(str(part[key]) for key in ("reason", "message") if part.get(key))


def _main_containers(pod: Pod) -> set[str]:
    return {str(container.get("name")) for container in (pod.get("spec") or {}).get("containers") or ()}
