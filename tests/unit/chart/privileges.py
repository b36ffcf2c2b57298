"""The table of what each container may do on its node, from what is rendered."""

from collections.abc import Iterator
from typing import Any

from tests.page_tables import head_of, line_of

Object = dict[str, Any]
COLUMNS = (
    "container", "user", "capabilities", "seccomp", "root file system", "namespaces of the node",
    "directories of the node", "API token",
)  # fmt: skip


def table(pods: dict[str, Object]) -> Iterator[str]:
    """Lines of Markdown. `pods`: pod specs by the name that the table gives them."""
    yield from head_of(*COLUMNS)
    for name, pod in pods.items():
        for container in pod["containers"]:
            label = name if len(pod["containers"]) == 1 else f"{name}, {container['name']}"
            yield line_of(label, *_cells(pod, container))


def _cells(pod: Object, container: Object) -> Iterator[str]:
    security = {**pod["securityContext"], **container["securityContext"]}
    privileged = security.get("privileged", False)
    yield str(security["runAsUser"])
    capabilities = security.get("capabilities", {})
    dropped = "ALL" in capabilities.get("drop", ())
    yield (
        "**all: privileged**" if privileged else ", ".join(capabilities.get("add", ())) or ("none" if dropped else "?")
    )
    yield "none" if privileged else security["seccompProfile"]["type"]
    yield "read-only" if security.get("readOnlyRootFilesystem") else "writable"
    shared = [key.removeprefix("host") for key in ("hostPID", "hostNetwork", "hostIPC") if pod.get(key)]
    yield ", ".join(shared) or "none"
    yield ", ".join(_directories(pod, container)) or "none"
    yield "yes" if pod["automountServiceAccountToken"] else "no"


def _directories(pod: Object, container: Object) -> Iterator[str]:
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod.get("volumes", ()) if "hostPath" in volume}
    for mount in container.get("volumeMounts", ()):
        if mount["name"] in paths:
            yield f"`{paths[mount['name']]}`" + (" (read-only)" if mount.get("readOnly") else "")
