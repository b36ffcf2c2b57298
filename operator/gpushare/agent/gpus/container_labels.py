"""SELinux labels of the node's directories that client containers see: a GPU's `attach/`, and front libraries.

With the policy of container-selinux a container may use sockets and files labelled `container_file_t` of level s0 or
its own; what is made below /run inherits `var_run_t`, whose sockets and files it may not use. So such a directory is
labelled, and what is made in it inherits that. Guarantees: nothing is done where SELinux is off, or where another
policy labels /run otherwise, such as Bottlerocket's, which lets containers use it anyway (docs/node-images.md). Never
raises.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

LOG = logging.getLogger(__name__)
ATTRIBUTE = "security.selinux"
"""The kernel answers it for every file, whether it is stored or not, and for none where SELinux is off."""
OF_RUN = ("var_run_t", "container_var_run_t")
FOR_CONTAINERS = "container_file_t:s0"
Label = Callable[[Path], None]
"""A function such as `open_to_containers`."""


class Attributes(Protocol):
    """The extended attributes of files, as in `os`."""

    def getxattr(self, path: Path, attribute: str) -> bytes: ...

    def setxattr(self, path: Path, attribute: str, value: bytes) -> None: ...


def container_label(current: str) -> str | None:
    """The label with which every container may use what has the label `current`; None: leave it. Pure.

    `current` is user:role:type:level; a policy without levels has no such label.
    """
    user, _, rest = current.partition(":")
    role, _, rest = rest.partition(":")
    kind, _, level = rest.partition(":")
    return f"{user}:{role}:{FOR_CONTAINERS}" if kind in OF_RUN and level else None


def open_to_containers(directory: Path, attributes: Attributes = os) -> None:
    """Gives `directory` the label, if it needs one. What is in it already keeps its own."""
    try:
        current = attributes.getxattr(directory, ATTRIBUTE).rstrip(b"\0").decode(errors="replace")
    except OSError:  # ENODATA or ENOTSUP: SELinux is off
        return
    label = container_label(current)
    if label is None:
        return
    try:
        attributes.setxattr(directory, ATTRIBUTE, label.encode())
    except OSError as error:
        LOG.warning(
            "%s cannot be labelled %s (%s): where SELinux is enforcing, containers cannot use it; set the chart's "
            "agent.seLinuxOptions to {type: spc_t}",
            directory,
            label,
            error.strerror or error,
        )
