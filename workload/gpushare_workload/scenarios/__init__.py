"""The scenarios by name. Each module has `NAME`, `add_arguments(parser)` and `run(arguments, events, stop)`."""

from gpushare_workload.scenarios.cooperation import ddp, pipeline, refine
from gpushare_workload.scenarios.isolation import depart, fault, hog, limits, oversize, swell
from gpushare_workload.scenarios.sharing import graph, mix, overlap, pin, pool, serve, streams, trio

SCENARIOS = {
    module.NAME: module
    for module in (
        limits,
        pool,
        streams,
        graph,
        pipeline,
        refine,
        pin,
        ddp,
        mix,
        overlap,
        trio,
        serve,
        fault,
        hog,
        oversize,
        swell,
        depart,
    )
}
