"""The scenarios by name. Each module: `NAME`, `add_arguments(parser)`, `run(arguments, report, stop)`."""

from gpushare_workload.scenarios import (
    ddp,
    depart,
    fault,
    graph,
    hog,
    limits,
    mix,
    pin,
    pipeline,
    pool,
    refine,
    serve,
    streams,
)

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
        serve,
        fault,
        hog,
        depart,
    )
}
