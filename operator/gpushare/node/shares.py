"""GpuShares as the agent reads them: one that an operator of another release wrote oddly must not stop the others."""

import logging
from collections.abc import Mapping

from pydantic import ValidationError

from gpushare.api.gpunode import ShareName
from gpushare.api.gpushare import GpuShare
from gpushare.kube.client import Object
from gpushare.kube.reflector import Key

LOG = logging.getLogger(__name__)


class Shares:
    """Parsed once per resource version."""

    def __init__(self) -> None:
        self._parsed: dict[Key, tuple[str, GpuShare | None]] = {}

    def read(self, objects: Mapping[Key, Object]) -> dict[ShareName, GpuShare]:
        """By name; what cannot be read is left out, and told once."""
        self._parsed = {key: self._parse(key, obj) for key, obj in objects.items()}
        return {share.name: share for _, share in self._parsed.values() if share is not None}

    def _parse(self, key: Key, obj: Object) -> tuple[str, GpuShare | None]:
        version = obj["metadata"]["resourceVersion"]
        known = self._parsed.get(key)
        if known is not None and known[0] == version:
            return known
        try:
            return version, GpuShare.model_validate(obj)
        except ValidationError as error:
            LOG.warning("GpuShare %s is passed over: %s", key[1], error)
            return version, None
