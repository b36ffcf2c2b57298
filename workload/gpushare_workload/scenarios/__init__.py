"""The scenarios by name. Each module: `NAME`, `add_arguments(parser)`, `run(arguments, report, stop)`."""

from gpushare_workload.scenarios import depart, limits, pool

SCENARIOS = {module.NAME: module for module in (limits, pool, depart)}
