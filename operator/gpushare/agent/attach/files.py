"""Keeps each GPU's grants.json true.

Guarantees: a file is written only when its content changes, and made anew only when who holds parts does. While it is
not known who holds parts, as after a restart of the agent, the pods in the file stay as they are; whether the GPU is
closed is written all the same. A file that cannot be written holds up no other GPU.
"""

import logging
from collections.abc import Mapping

from gpushare.agent.attach.grants import PartHolders, granted_pods
from gpushare.agent.podresources.holdings import ShareGpu
from gpushare.agent.reconcile.daemon_files import DaemonFiles
from gpushare.api.gpunode import ShareName, Uuid
from gpushare.api.gpushare import GpuShare
from gpushare.messages.log_on_change import LogOnChange
from gpushare.messages.wording import first_names
from gpushare.mps.files import READABLE, read_model, write_model
from gpushare.mps.wire import GpuGrants, GrantedPod

LOG = logging.getLogger(__name__)
MAX_PODS_NAMED = 8


class GrantFiles:
    def __init__(self) -> None:
        self._written: dict[Uuid, GpuGrants] = {}
        self._holders: PartHolders | None = None
        self._pods: dict[ShareGpu, list[GrantedPod]] = {}
        """What follows from `_holders`."""
        self._problems = LogOnChange(LOG)

    def update(
        self, on_disk: Mapping[Uuid, DaemonFiles], why_closed: Mapping[Uuid, str], holders: PartHolders | None
    ) -> None:
        """`on_disk`: the GPUs taken. `why_closed`: of those decided on, see `grants.closed`. `holders` None: not known
        yet.
        """
        self._written = {uuid: grants for uuid, grants in self._written.items() if uuid in on_disk}
        if holders != self._holders:
            self._holders, self._pods = holders, {}
        for uuid in on_disk.keys() & why_closed.keys():
            try:
                self._update(on_disk[uuid], why_closed[uuid], holders)
                self._problems.clear(("write", uuid))
            except OSError as error:
                text = "GPU %s: who may attach cannot be written, trying again: %s"
                self._problems.log(text, uuid, error.strerror or error, key=("write", uuid))

    def closed(self) -> set[Uuid]:
        """The GPUs whose file, as it is on disk, lets nobody in."""
        return {uuid for uuid, grants in self._written.items() if grants.closed}

    def _update(self, item: DaemonFiles, why_closed: str, holders: PartHolders | None) -> None:
        """OSError."""
        uuid, share, path = item.wanted.uuid, item.wanted.share, item.directory.grants
        exists = path.exists()
        before = self._before(item) if exists else None
        if (holders is None and before is None) or (item.wanted.stop and not exists):
            return  # of a GPU that is given back the file may be gone already
        known = before.pods if before is not None else []
        pods = self._granted(holders, share, uuid, known) if holders is not None else known
        gpu_share = holders.shares.get(share) if holders is not None else None
        places, max_wait = _queue(gpu_share, before)
        grants = GpuGrants(uuid=uuid, share=share, closed=why_closed, places=places, max_wait=max_wait, pods=pods)
        if grants != before:
            write_model(path, grants, READABLE)
        self._written[uuid] = grants

    def _before(self, item: DaemonFiles) -> GpuGrants | None:
        """What the file holds; None: nothing, or grants of another share."""
        known = self._written.get(item.wanted.uuid)
        if known is None:
            known = read_model(item.directory.grants, GpuGrants).value
        return known if known is not None and known.share == item.wanted.share else None

    def _granted(
        self, holders: PartHolders, share: ShareName, uuid: Uuid, before: list[GrantedPod]
    ) -> list[GrantedPod]:
        if (share, uuid) in self._pods:
            return self._pods[share, uuid]
        granted, left_out = granted_pods(holders, share, uuid, before)
        if left_out:
            text = "GPU %s: grants.json has no room for all containers of %s: those left out cannot attach"
            self._problems.log(text, uuid, first_names(left_out, MAX_PODS_NAMED), key=("room", uuid))
        else:
            self._problems.clear(("room", uuid))
        self._pods[share, uuid] = granted
        return self._pods[share, uuid]


def _queue(share: GpuShare | None, before: GpuGrants | None) -> tuple[int, float]:
    """(places, seconds of waiting at most); (0, 0) without a queue. What holds stays while the share is not known."""
    if share is None:
        return (before.places, before.max_wait) if before is not None else (0, 0.0)
    return (share.clients.per_gpu, float(share.place_wait_seconds)) if share.queue is not None else (0, 0.0)
