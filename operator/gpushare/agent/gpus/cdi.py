"""The gate: a GPU's CDI spec exists exactly while the GPU is ready.

Guarantees: no container starts on a GPU whose limits are not in force, not even a restarted one. Without the spec the
container runtime refuses every start that names the device, and the kubelet tries again. Specs are replaced atomically.
"""

import json
from pathlib import Path
from typing import Any

from gpushare.agent.gpus.edits import ContainerEdits
from gpushare.api import names
from gpushare.api.gpunode import Uuid
from gpushare.mps.files import FileVersion, file_version, write_text
from gpushare.process.bounded_read import read_start, read_text

CDI_VERSION = "0.6.0"
"""Old enough for containerd 1.7 and CRI-O 1.28; hostPath of device nodes needs 0.5.0, type of mounts 0.4.0."""
SCRATCH_OPTIONS = ("rw", "nosuid", "nodev", "noexec", "mode=1777", "size=4m", "nr_inodes=64")
"""Of a directory in memory: what a container writes there counts as its own memory."""

PREFIX = names.CDI_KIND.replace("/", "-") + "-"
SUFFIX = ".json"
MAX_SPEC_BYTES = 256 * 1024
"""More than a spec of ours has, with every library of a driver."""
MODES = ("Auto", "Always", "Never")


def used(mode: str, container_runtime: str) -> bool:
    """Whether containers get their edits by CDI. `container_runtime`: from the Node's status, as containerd://2.4.2.

    containerd 1.x has CDI switched off by default and then drops the devices silently.
    """
    if mode != "Auto":
        return mode == "Always"
    name, _, version = container_runtime.partition("://")
    if name == "containerd":
        major = version.lstrip("v").split(".")[0]
        return major.isdecimal() and int(major) >= 2
    return name == "cri-o"


def spec(uuid: Uuid, edits: ContainerEdits) -> dict[str, Any]:
    """A GPU's CDI spec (CNCF container-device-interface, SPEC.md)."""
    return {
        "cdiVersion": CDI_VERSION,
        "kind": names.CDI_KIND,
        "devices": [
            {
                "name": uuid,
                "containerEdits": {
                    "env": [f"{key}={value}" for key, value in edits.env.items()],
                    "deviceNodes": [
                        {"path": node.container_path, "hostPath": node.host_path, "permissions": node.permissions}
                        for node in edits.devices
                    ],
                    "mounts": [
                        {
                            "hostPath": mount.host_path,
                            "containerPath": mount.container_path,
                            "options": ["ro" if mount.read_only else "rw", "nosuid", "nodev", "bind"],
                        }
                        for mount in edits.mounts
                    ]
                    + [
                        {"hostPath": "tmpfs", "containerPath": path, "type": "tmpfs", "options": [*SCRATCH_OPTIONS]}
                        for path in edits.scratch
                    ],
                },
            }
        ],
    }


class Gate:
    """The GPUs' specs in one CDI directory. Writes only what differs. OSError: a spec cannot be written or removed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._found: dict[Uuid, tuple[FileVersion, dict[str, Any]]] = {}
        """The file that was read last of each GPU, and what is in it."""

    def uuids(self) -> set[Uuid]:
        """GPUs whose gate is open, with those that an earlier agent opened. OSError: the directory cannot be read."""
        try:
            files = [entry.name for entry in self._directory.iterdir()]
        except FileNotFoundError:
            return set()
        return {name[len(PREFIX) : -len(SUFFIX)] for name in files if name.startswith(PREFIX) and name.endswith(SUFFIX)}

    def text(self) -> str:
        """All that is in the specs. OSError: they cannot be read."""
        return "".join(read_text(self._path(uuid), MAX_SPEC_BYTES) for uuid in sorted(self.uuids()))

    def open(self, uuid: Uuid, desired: dict[str, Any]) -> None:
        path = self._path(uuid)
        version = file_version(path)
        if version is not None and self._found.get(uuid) == (version, desired):
            return
        text = json.dumps(desired, indent=1)
        if version is not None and path.is_file() and read_start(path, len(text) + 1) == text.encode():
            self._found[uuid] = version, desired
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        write_text(path, text, mode=0o644)

    def close(self, uuid: Uuid) -> None:
        self._path(uuid).unlink(missing_ok=True)

    def _path(self, uuid: Uuid) -> Path:
        return self._directory / f"{PREFIX}{uuid}{SUFFIX}"
