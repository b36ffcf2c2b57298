"""Who may attach to a GPU, by what the agent wrote of its grants. `judge` is pure.

A process is its container, by the cgroup that the kernel shows, and as long as the pod's status does not show that
container's id, by the kubelet's own mount in it (`termination_log`); what it says of itself counts for nothing.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from gpushare.mps.broker.connections import needed
from gpushare.mps.files import ModelFiles
from gpushare.mps.identity import Container
from gpushare.mps.layout import GpuDir
from gpushare.mps.wire import ClientGrant, GpuGrants, GrantedPod, RefusedAttach
from gpushare.process.procfs import Owner

NO_OWNER = Owner("", "")
ReadContainer = Callable[[int, str], str]
"""(PID, its pod's uid) -> the name of its container; empty: it is not known."""


@dataclass(frozen=True, slots=True)
class AttachAdmitted:
    """`owner`: the pod and container that the process belongs to."""

    owner: Owner
    container: str
    grant: ClientGrant

    @property
    def key(self) -> Container:
        return self.owner.pod_uid, self.container


@dataclass(frozen=True, slots=True)
class AttachDenied:
    reason: RefusedAttach
    message: str
    owner: Owner = NO_OWNER
    container: str = ""


@dataclass(frozen=True, slots=True)
class AttachUndecided:
    """Worth another try in a moment. `refused`: what becomes of it if nothing changes. `starting`: its pod holds a part
    of this GPU, and may still be starting: the kubelet shows no container's id before it has started all of them.
    `closed`: why the GPU takes no client, as the agent wrote it; it begins with a DaemonReason.
    """

    refused: AttachDenied
    starting: bool = False
    closed: str = ""


Verdict = AttachAdmitted | AttachDenied | AttachUndecided


def judge(grants: GpuGrants | None, owners: Sequence[Owner]) -> Verdict:
    """`grants`: of this GPU; None: not known. `owners`: the pods that the process' cgroup names, the outermost first.

    The outermost counts, also where it holds no part and one further in does: whoever may write cgroups inside a
    container can give them the names of other pods.
    """
    if not owners:
        return AttachDenied(RefusedAttach.NO_GRANT, "it belongs to no pod")
    pods = {pod.uid: pod for pod in grants.pods} if grants else {}
    owner = owners[0]
    pod = pods.get(owner.pod_uid)
    if pod is None:
        why = "its pod holds no part of this GPU" if grants else "nothing is known yet of who holds a part of this GPU"
        return AttachUndecided(AttachDenied(RefusedAttach.NO_GRANT, why, owner))
    verdict = _container(pod, owner)
    if isinstance(verdict, AttachAdmitted) and grants and grants.closed:
        text = f"the GPU takes no new client: {grants.closed}"
        denied = AttachDenied(RefusedAttach.GPU_CLOSED, text[:512], owner, verdict.container)
        return AttachUndecided(denied, closed=grants.closed)
    return verdict


def _container(pod: GrantedPod, owner: Owner) -> Verdict:
    """The container of that id, or of that name; an only container is known at once. The pod's status shows the ids
    about a second after the start of the last container: the kubelet writes it before it starts them, one after the
    other, images and postStart hooks included.
    """
    known = next(
        (container for container in pod.containers if container.id and container.id == owner.container_id), None
    ) or next((container for container in pod.containers if container.name == owner.container), None)
    if known is None:
        if len(pod.containers) != 1:
            why = "its pod has several containers, and the pod's status does not show yet which of them it is"
            return AttachUndecided(AttachDenied(RefusedAttach.NO_GRANT, why, owner), starting=True)
        known = pod.containers[0]
    if known.too_many_protected:
        why = f"its container {known.name} is Protected, and this GPU has all protected clients that its share allows"
        return AttachDenied(RefusedAttach.TOO_MANY_PROTECTED, why, owner, known.name)
    if known.grant is None:
        why = f"its container {known.name} holds no part of this GPU"
        return AttachDenied(RefusedAttach.NO_GRANT, why, owner, known.name)
    return AttachAdmitted(owner, known.name, known.grant)


class GrantsFile:
    """What the agent wrote of the grants of one GPU. `files`: its reader."""

    def __init__(self, gpu: GpuDir, share: str, files: ModelFiles, read_container: ReadContainer) -> None:
        self._gpu = gpu
        self._read_container = read_container
        self._share = share
        self._files = files
        self._needed_by: GpuGrants | None = None
        self._needed: dict[str, int] = {}

    def now(self) -> GpuGrants | None:
        """None: it cannot be read now, or is of another share."""
        grants = self._files.read(self._gpu.grants, GpuGrants).value
        return grants if grants is not None and grants.share == self._share else None

    def named(self, pid: int, owners: Sequence[Owner]) -> Sequence[Owner]:
        """The `owners` of a process, with the name of its container where the pod's status does not show its id yet.
        Only then its mounts are read, which may be many.
        """
        verdict = judge(self.now(), owners)
        if not (isinstance(verdict, AttachUndecided) and verdict.starting):
            return owners
        name = self._read_container(pid, owners[0].pod_uid)
        return (dataclasses.replace(owners[0], container=name), *owners[1:])

    def held_by(self, owners: Sequence[Owner]) -> AttachAdmitted | None:
        """What the container holds of the GPU, which need take no new client."""
        known = self.now()
        verdict = judge(None if known is None else replace(known, closed=""), owners)
        return verdict if isinstance(verdict, AttachAdmitted) else None

    def connections_needed(self) -> Mapping[str, int]:
        """Of each pod that holds a part of the GPU."""
        grants = self.now()
        if grants is not self._needed_by:
            self._needed_by, pods = grants, grants.pods if grants is not None else ()
            waits = grants is not None and grants.places > 0
            self._needed = {
                pod.uid: needed(sum(item.grant.processes for item in pod.containers if item.grant), waits=waits)
                for pod in pods
            }
        return self._needed
