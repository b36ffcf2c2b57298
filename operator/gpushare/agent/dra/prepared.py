"""The prepared claims of this node, in memory and on disk: a CDI spec for each is its only checkpoint.

A spec carries every CUDA_MPS_* variable, which the pod's own would otherwise decide: the runtime gives CDI precedence.
It names no device and no mount; those are in the GPU's CDI spec, the gate, which the container is given too.

Guarantees: a spec is written as a whole or not at all; a restarted agent knows the claims that were prepared before. A
claim grants its part to one pod at a time, though the kubelet starts every pod that may use a claim once the first has
been prepared.
"""

import json
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpushare.agent.dra.users import uses
from gpushare.agent.gpus.cdi import CDI_VERSION
from gpushare.agent.podresources.holdings import ContainerName, Holdings, ShareGpu
from gpushare.api import names
from gpushare.api.gpunode import Uuid
from gpushare.grant.environment import client_environment, grant_from_environment
from gpushare.grant.model import Grant
from gpushare.kube.client import Object
from gpushare.kube.pods import has_ended
from gpushare.mps.files import MAX_BYTES, write_text
from gpushare.process.bounded_read import BoundExceededError, read_bytes

LOG = logging.getLogger(__name__)

PREFIX = names.CLAIM_CDI_KIND.replace("/", "-") + "-"
SUFFIX = ".json"
_NAMESPACE, _NAME = f"{names.GROUP}/claim-namespace", f"{names.GROUP}/claim-name"
_POD = f"{names.GROUP}/claim-pod"
_GPU, _POOL, _DEVICE = f"{names.GROUP}/gpu", f"{names.GROUP}/pool", f"{names.GROUP}/device"
_REQUEST, _SHARE_ID = f"{names.GROUP}/request", f"{names.GROUP}/share-id"


@dataclass(frozen=True, slots=True)
class PreparedPart:
    """`pool` and `device`: as the ResourceSlice names them. `gpu_memory_mib`: of the share's largest GPU; None: not
    known, as of a part that was read from disk.
    """

    uuid: Uuid
    request: str
    pool: str
    device: str
    share_id: str
    grant: Grant
    gpu_memory_mib: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """A container's part of a GPU by its claim."""

    share_gpu: ShareGpu
    grant: Grant


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """A claim whose containers may start; it holds its parts until the kubelet unprepares it.

    `pod_uid`: of the pod that it was prepared for; empty: an earlier release prepared it.
    """

    uid: str
    namespace: str
    name: str
    parts: tuple[PreparedPart, ...]
    pod_uid: str = ""


def cdi_devices(claim_uid: str, part: PreparedPart) -> list[str]:
    """The CDI devices of the claim's container: the grant, then the GPU, whose variables count where both have one."""
    return [f"{names.CLAIM_CDI_KIND}={_device_name(claim_uid, part.request)}", names.cdi_device(part.uuid)]


def spec(claim: PreparedClaim) -> dict[str, Any]:
    """The claim's CDI spec (CNCF container-device-interface, SPEC.md 0.6.0, which has annotations)."""
    return {
        "cdiVersion": CDI_VERSION,
        "kind": names.CLAIM_CDI_KIND,
        "annotations": {_NAMESPACE: claim.namespace, _NAME: claim.name, _POD: claim.pod_uid},
        "devices": [
            {
                "name": _device_name(claim.uid, part.request),
                "annotations": {
                    _GPU: part.uuid,
                    _POOL: part.pool,
                    _DEVICE: part.device,
                    _REQUEST: part.request,
                    _SHARE_ID: part.share_id,
                },
                "containerEdits": {"env": [f"{name}={value}" for name, value in _environment(part).items()]},
            }
            for part in claim.parts
        ],
    }


class PreparedClaims:
    """The prepared claims in one CDI directory. Reads the specs when it is made and, where that failed, by `read`."""

    def __init__(self, directory: Path) -> None:
        self.count = 0
        """Claims that this agent prepared."""
        self.unread = ""
        """Why claims that an earlier agent prepared may be missing here; empty: all are known."""
        self._directory = directory
        self._claims: dict[str, PreparedClaim] = {}
        self._held: dict[ShareGpu, dict[tuple[str, str], int]] = {}
        """(share, GPU) -> (claim's uid, request) -> the number of its part."""
        self._read_all()

    def __bool__(self) -> bool:
        """Whether a claim is, or may be, prepared here."""
        return bool(self._claims or self.unread)

    def read(self) -> None:
        """Reads the specs again if `unread`."""
        if self.unread:
            self._read_all()

    def get(self, claim_uid: str) -> PreparedClaim | None:
        return self._claims.get(claim_uid)

    def all(self) -> list[PreparedClaim]:
        return list(self._claims.values())

    def names_in(self, namespace: str) -> set[str]:
        """The names of the namespace's claims."""
        return {claim.name for claim in self._claims.values() if claim.namespace == namespace}

    def add(self, claim: PreparedClaim) -> None:
        """Writes the spec, then holds the parts; replaces a claim of the same uid. OSError: nothing has changed."""
        self._directory.mkdir(parents=True, exist_ok=True)
        write_text(self._path(claim.uid), json.dumps(spec(claim), indent=1), mode=0o644)
        self._release(claim.uid)
        self._hold(claim)
        self.count += 1

    def remove(self, claim_uid: str) -> bool:
        """False: it was not prepared. OSError: it stays as it was."""
        self._path(claim_uid).unlink(missing_ok=True)
        return self._release(claim_uid)

    def holdings(self) -> Holdings:
        """(share, GPU) -> a number for each part that a claim holds of it, which the part keeps."""
        return {share_gpu: frozenset(numbers.values()) for share_gpu, numbers in self._held.items()}

    def containers(self, pods: Iterable[Object]) -> dict[ContainerName, ClaimUse]:
        """The containers of `pods` whose claims are prepared, of one pod for each claim."""
        by_name = {(claim.namespace, claim.name): claim for claim in self._claims.values()}
        users: dict[tuple[str, str], list[Object]] = {}
        for pod in pods if by_name else ():
            for name in {use.claim for use in uses(pod)}:
                users.setdefault((pod["metadata"]["namespace"], name), []).append(pod)
        used = {}
        for key, claim in by_name.items():
            user = _user(claim, users.get(key, ()))
            if user is None:
                continue
            for use in uses(user):
                for part in claim.parts:
                    if use.of(claim.name, part.request):
                        where = (claim.namespace, user["metadata"]["name"], use.container)
                        used[where] = ClaimUse((part.grant.share, part.uuid), part.grant)
        return used

    def pods(self, pods: Iterable[Object]) -> dict[ShareGpu, frozenset[str]]:
        """The ones of `pods` that hold a part of each GPU, as namespace/name."""
        holders: dict[ShareGpu, set[str]] = {}
        for (namespace, pod, _), used in self.containers(pods).items():
            holders.setdefault(used.share_gpu, set()).add(f"{namespace}/{pod}")
        return {share_gpu: frozenset(whole_names) for share_gpu, whole_names in holders.items()}

    def _read_all(self) -> None:
        """Leaves out invalid specs: another release wrote them, and their containers still need them."""
        self.unread = ""
        try:
            paths = sorted(self._directory.iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            self.unread = str(error)
            return
        for path in paths:
            if path.name.startswith(PREFIX) and path.name.endswith(SUFFIX):
                self._read(path)

    def _read(self, path: Path) -> None:
        try:
            self._hold(_read(path))
        except (BoundExceededError, ValueError, KeyError, TypeError, AttributeError) as error:
            LOG.warning("CDI spec %s is ignored: %s", path, error)
        except OSError as error:
            self.unread = str(error)

    def _path(self, claim_uid: str) -> Path:
        return self._directory / f"{PREFIX}{claim_uid}{SUFFIX}"

    def _hold(self, claim: PreparedClaim) -> None:
        self._claims[claim.uid] = claim
        for part in claim.parts:
            numbers = self._held.setdefault((part.grant.share, part.uuid), {})
            numbers.setdefault((claim.uid, part.request), _lowest_free(numbers.values()))

    def _release(self, claim_uid: str) -> bool:
        known = self._claims.pop(claim_uid, None)
        for numbers in self._held.values():
            for key in [key for key in numbers if key[0] == claim_uid]:
                del numbers[key]
        self._held = {share_gpu: numbers for share_gpu, numbers in self._held.items() if numbers}
        return known is not None


def _user(claim: PreparedClaim, pods: Collection[Object]) -> Object | None:
    """The one of `pods`, which all use it, that the claim serves: the pod that it was prepared for, or, where that has
    ended or is not known, who has been there longest.
    """
    living = [pod for pod in pods if not has_ended(pod)] or list(pods)

    def rank(pod: Object) -> tuple[bool, bool, str, str]:
        uid, started = pod["metadata"]["uid"], str((pod.get("status") or {}).get("startTime") or "")
        return uid != claim.pod_uid, not started, started, uid

    return min(living, key=rank, default=None)


def _lowest_free(taken: Iterable[int]) -> int:
    numbers = set(taken)
    return next(number for number in range(len(numbers) + 1) if number not in numbers)


def _environment(part: PreparedPart) -> dict[str, str]:
    return client_environment(part.grant, part.gpu_memory_mib)


def _device_name(claim_uid: str, request: str) -> str:
    return f"{claim_uid}-{request}"


def _read(path: Path) -> PreparedClaim:
    body = json.loads(read_bytes(path, MAX_BYTES))
    uid = path.name[len(PREFIX) : -len(SUFFIX)]
    annotations = body["annotations"]
    parts = tuple(_read_part(device) for device in body["devices"])
    return PreparedClaim(uid, annotations[_NAMESPACE], annotations[_NAME], parts, annotations.get(_POD, ""))


def _read_part(device: Mapping[str, Any]) -> PreparedPart:
    annotations, variables = device["annotations"], device["containerEdits"]["env"]
    grant = grant_from_environment(dict(item.split("=", 1) for item in variables))
    if grant is None:
        raise ValueError("its variables are no grant")
    return PreparedPart(
        annotations[_GPU],
        annotations[_REQUEST],
        annotations[_POOL],
        annotations[_DEVICE],
        annotations[_SHARE_ID],
        grant,
    )
