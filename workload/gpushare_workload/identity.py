"""What every figure is told with: what computed it, and whether its times are a GPU's."""

from gpushare_workload.backend import Backend


def identity(backend: Backend) -> dict[str, str | bool]:
    return {"backend": backend.name, "timed": backend.timed}
