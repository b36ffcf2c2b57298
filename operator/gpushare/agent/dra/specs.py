"""Prepared claims on the node's disk: a CDI spec for each, of environment variables alone, which is its checkpoint.

A spec carries every CUDA_MPS_* variable, which the pod's own would otherwise decide: the runtime lets CDI win. It names
no device and no mount; those are the gate's, which a claim's container is given beside it.

Guarantees: a spec is there as a whole or not; what was prepared is known again after a restart; nothing else is kept.
"""

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpushare.agent.gpus.cdi import CDI_VERSION
from gpushare.api import names
from gpushare.api.gpunode import Uuid
from gpushare.grant.environment import client_environment, grant_from_environment
from gpushare.grant.model import Grant
from gpushare.mps.files import MAX_BYTES, write_text

LOG = logging.getLogger(__name__)

PREFIX = names.CLAIM_CDI_KIND.replace("/", "-") + "-"
SUFFIX = ".json"
_NAMESPACE, _NAME = f"{names.GROUP}/claim-namespace", f"{names.GROUP}/claim-name"
_GPU, _POOL, _DEVICE = f"{names.GROUP}/gpu", f"{names.GROUP}/pool", f"{names.GROUP}/device"
_REQUEST, _SHARE_ID = f"{names.GROUP}/request", f"{names.GROUP}/share-id"


@dataclass(frozen=True, slots=True)
class PreparedPart:
    """`pool` and `device`: as the ResourceSlice names them; `gpu_memory_mib`: of the share's largest GPU, None
    where unknown, as in what was read back."""

    uuid: Uuid
    request: str
    pool: str
    device: str
    share_id: str
    grant: Grant
    gpu_memory_mib: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """A claim whose containers may start; held from here until the kubelet unprepares it."""

    uid: str
    namespace: str
    name: str
    parts: tuple[PreparedPart, ...]


def cdi_devices(claim_uid: str, part: PreparedPart) -> list[str]:
    """What the container runtime is to look up: the GPU's gate, then the grant."""
    return [names.cdi_device(part.uuid), f"{names.CLAIM_CDI_KIND}={_device_name(claim_uid, part.request)}"]


def spec(claim: PreparedClaim) -> dict[str, Any]:
    """CNCF container-device-interface, SPEC.md 0.6.0, which has annotations."""
    return {
        "cdiVersion": CDI_VERSION,
        "kind": names.CLAIM_CDI_KIND,
        "annotations": {_NAMESPACE: claim.namespace, _NAME: claim.name},
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


class ClaimSpecs:
    """Those in one CDI directory. OSError: it cannot be written or read."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read_all(self) -> list[PreparedClaim]:
        """Without those that cannot be read: another release wrote them, and their containers still need them."""
        found = []
        for path in sorted(self._directory.glob(f"{PREFIX}*{SUFFIX}")) if self._directory.is_dir() else ():
            try:
                found.append(_read(path))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                LOG.warning("CDI spec %s is passed over: %s", path, error)
        return found

    def write(self, claim: PreparedClaim) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        write_text(self._path(claim.uid), json.dumps(spec(claim), indent=1), mode=0o644)

    def remove(self, claim_uid: str) -> None:
        self._path(claim_uid).unlink(missing_ok=True)

    def _path(self, claim_uid: str) -> Path:
        return self._directory / f"{PREFIX}{claim_uid}{SUFFIX}"


def _environment(part: PreparedPart) -> dict[str, str]:
    return client_environment(part.grant, part.gpu_memory_mib)


def _device_name(claim_uid: str, request: str) -> str:
    return f"{claim_uid}-{request}"


def _read(path: Path) -> PreparedClaim:
    with path.open("rb") as file:
        body = json.loads(file.read(MAX_BYTES))
    uid = path.name[len(PREFIX) : -len(SUFFIX)]
    annotations = body["annotations"]
    parts = tuple(_read_part(device) for device in body["devices"])
    return PreparedClaim(uid, annotations[_NAMESPACE], annotations[_NAME], parts)


def _read_part(device: dict[str, Any]) -> PreparedPart:
    told, variables = device["annotations"], device["containerEdits"]["env"]
    grant = grant_from_environment(dict(item.split("=", 1) for item in variables))
    if grant is None:
        raise ValueError("its variables are no grant")
    return PreparedPart(told[_GPU], told[_REQUEST], told[_POOL], told[_DEVICE], told[_SHARE_ID], grant)
