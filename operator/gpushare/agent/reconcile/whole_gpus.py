"""whole.json in a GPU's directory: the node's memory that a share gives this GPU whole, and under which resource.

Such a GPU has no MPS daemon, no compute mode of ours and nothing else in its directory. As with daemon.json, what is on
disk decides whose the GPU is while the API server does not answer.
"""

import logging
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from gpushare.api.gpunode import Uuid
from gpushare.mps.files import ModelFiles, write_model
from gpushare.mps.layout import gpu_dir, gpu_dirs
from gpushare.mps.wire import WireModel

LOG = logging.getLogger(__name__)


class WholeGpu(WireModel, frozen=True, kw_only=True):
    version: Literal[1] = 1
    uuid: str
    share: Annotated[str, Meta(min_length=1, max_length=40)]
    resource: Annotated[str, Meta(min_length=1, max_length=128)]


def read_all(root: Path, files: ModelFiles) -> dict[Uuid, WholeGpu]:
    """Every GPU that is given whole; a file that cannot be read is logged and left out."""
    whole = {}
    for directory in gpu_dirs(root):
        read = files.read(directory.whole, WholeGpu)
        if read.value is not None:
            whole[directory.uuid] = read.value
        elif not read.absent:
            LOG.warning("GPU directory ignored: %s", read.reason)
    return whole


def write(root: Path, gpu: WholeGpu) -> None:
    """OSError: it is not written."""
    directory = gpu_dir(root, gpu.uuid)
    directory.path.mkdir(mode=0o711, parents=True, exist_ok=True)
    write_model(directory.whole, gpu)
