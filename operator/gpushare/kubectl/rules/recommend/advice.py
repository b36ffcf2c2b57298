"""One recommendation: the change, the figures that it stands on, and how sure they make. Pure."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gpushare.api.gpushare import GpuShare
from gpushare.kubectl.rules.recommend.sureness import Sureness


class AdviceKind(StrEnum):
    MEMORY = "memory granted and never used"
    BORROW = "memory reserved for peaks"
    RESERVE = "memory that is mostly borrowed"
    MORE_CLIENTS = "more clients"
    FEWER_CLIENTS = "fewer clients"
    THREADS = "threads that nobody could use"
    OWN_GPU = "a GPU of its own"
    UNUSED = "held without a client"
    IDLE = "held without work"
    BEST_EFFORT = "could be best effort"


WHOLE_GPU = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class TemplatePatch:
    """Gives a container of a Deployment, StatefulSet or DaemonSet a whole GPU in place of its slot."""

    kind: str
    namespace: str
    name: str
    container: str
    slot: str
    """The extended resource of the share."""

    def body(self) -> dict[str, Any]:
        """A strategic merge patch, which finds the container by its name; null takes the slot away."""
        resources = {"limits": {self.slot: None, WHOLE_GPU: "1"}, "requests": {self.slot: None, WHOLE_GPU: "1"}}
        containers = [{"name": self.container, "resources": resources}]
        return {"spec": {"template": {"spec": {"containers": containers}}}}

    def words(self, flags: Sequence[str]) -> list[str]:
        target = f"{self.kind.lower()}/{self.name}"
        return [
            "kubectl",
            *flags,
            "-n",
            self.namespace,
            "patch",
            target,
            "--type",
            "strategic",
            "-p",
            _json(self.body()),
        ]


@dataclass(frozen=True, slots=True)
class Advice:
    """`about`: a share, or `namespace/name` of a pod or workload. `now`, `change`: in the words of the spec.

    `patch`: a merge patch of the GpuShare; None: the change is not one of the share. `template`: the change of what
    makes the pods, where that is known; None: it is not, or cannot be changed. `figures`: for programs, in the
    units of their names.
    """

    kind: AdviceKind
    share: str
    about: str
    now: str
    change: str
    why: str
    sure: Sureness
    figures: Mapping[str, Any] = field(default_factory=dict)
    patch: Mapping[str, Any] | None = None
    template: TemplatePatch | None = None

    def command(self, flags: Sequence[str] = ()) -> str:
        """The line that makes the change; empty without a patch. `flags`: of kubectl's connection."""
        if self.template is not None:
            return shlex.join(self.template.words(flags))
        return "" if self.patch is None else patch_command(self.share, self.patch, flags)


def patch_command(share: str, patch: Mapping[str, Any], flags: Sequence[str] = ()) -> str:
    """The line that applies a merge patch to a GpuShare. `flags`: of kubectl's connection."""
    return shlex.join(["kubectl", *flags, "patch", "gpushare", share, "--type", "merge", "-p", _json(patch)])


def _json(patch: Mapping[str, Any]) -> str:
    return json.dumps(patch, separators=(",", ":"))


def client_patch(**clients: Any) -> dict[str, Any]:
    return {"spec": {"clients": clients}}


def patched(share: GpuShare, patch: Mapping[str, Any]) -> GpuShare:
    """The share after a merge patch (RFC 7386)."""
    return GpuShare.model_validate(_merged(share.wire(), patch))


def _merged(target: Any, patch: Any) -> Any:
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged
