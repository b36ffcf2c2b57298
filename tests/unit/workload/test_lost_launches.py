"""A backend that loses launches is found by every program that reports a rate: each launch adds to its result."""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any

import pytest

from gpushare_workload.backend.on_numpy.backend import NumpyBackend
from gpushare_workload.backend.on_numpy.tasks import NumpyTask
from gpushare_workload.backend.work import Grid, Load, LoadKind, Work
from gpushare_workload.bench import client
from gpushare_workload.bench.client import LoadRequest
from gpushare_workload.bench.loop import Window
from gpushare_workload.events import JsonLines, WrongError
from gpushare_workload.processes.stopping import Stop
from gpushare_workload.scenarios.sharing import mix, serve, trio
from gpushare_workload.scenarios.sharing.mix import TimedRun
from gpushare_workload.scenarios.sharing.trio import TARGETS, Role, RoleRun

SECONDS = 0.05


class LosingTask(NumpyTask):
    """Runs the first launch, and loses the others."""

    launched = False

    def launch(self, lane: int = 0) -> None:
        if not self.launched:
            super().launch(lane)
        self.launched = True


class LosingBackend(NumpyBackend):
    def prepare(self, work: Work) -> NumpyTask:
        return LosingTask(work, lambda _: None, self.synchronize, 0.0)


class InThisProcess:
    """A worker without a parent: it receives what `requests` make at that moment."""

    def __init__(self, backend: NumpyBackend, *requests: Callable[[], Any]) -> None:
        self._backend, self._requests = backend, iter(requests)
        self.stop = Stop()

    @contextmanager
    def gpu(self, choice: str) -> Iterator[NumpyBackend]:
        yield self._backend

    def start(self) -> None: ...

    def send(self, message: Any) -> None: ...

    def receive(self) -> Any:
        return next(self._requests)()

    def asked(self) -> bool:
        return False


def run_bench(backend: NumpyBackend, load: Load) -> None:
    requests = (lambda: LoadRequest(load, 1), lambda: Window.of(time.monotonic(), 0.0, SECONDS), lambda: None)
    client.serve(InThisProcess(backend, *requests), "numpy")  # type: ignore[arg-type]


def run_mix(backend: NumpyBackend, kind: LoadKind) -> None:
    parser = argparse.ArgumentParser()
    mix.add_arguments(parser)
    arguments = argparse.Namespace(backend="numpy", **vars(parser.parse_args(["--grid", "small"])))
    requests = (lambda: TimedRun(kind, time.monotonic(), SECONDS), lambda: None)
    mix.serve(InThisProcess(backend, *requests), arguments)  # type: ignore[arg-type]


def run_serve(backend: NumpyBackend, kind: LoadKind) -> list[dict[str, Any]]:
    parser, out = argparse.ArgumentParser(), StringIO()
    serve.add_arguments(parser)
    given = vars(parser.parse_args(["--grid", "small", "--kind", kind, "--duration", "0.1", "--warmup", "3"]))
    arguments = argparse.Namespace(backend="numpy", seed=1, **given)
    serve.run(arguments, JsonLines("serve", out), Stop(), lambda _: backend)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def run_trio(backend: NumpyBackend, role: Role) -> None:
    parser = argparse.ArgumentParser()
    trio.add_arguments(parser)
    small = ["--grid", "small", "--iterations", "256", "--elements", "256", "--depth", "2"]
    arguments = argparse.Namespace(backend="numpy", **vars(parser.parse_args(small)))
    requests = (lambda: RoleRun(time.monotonic(), SECONDS, 1), lambda: None)
    TARGETS[role](InThisProcess(backend, *requests), arguments)


@pytest.mark.parametrize("graph", [False, True], ids=["one by one", "graph"])
@pytest.mark.parametrize("kind", list(LoadKind))
def test_the_benchmark_finds_lost_launches(kind: LoadKind, graph: bool) -> None:
    load = Load(kind, Grid.SMALL, depth=4, graph=graph)
    run_bench(NumpyBackend(), load)
    with pytest.raises(WrongError, match=rf"{kind.value} small, depth 4.* on lane 0: \d+ of \d+ values are wrong"):
        run_bench(LosingBackend(), load)


@pytest.mark.parametrize("kind", list(LoadKind))
def test_a_mixture_finds_lost_launches(kind: LoadKind) -> None:
    run_mix(NumpyBackend(), kind)
    with pytest.raises(WrongError, match=rf"{kind.value}: \d+ of \d+ values are wrong"):
        run_mix(LosingBackend(), kind)


@pytest.mark.parametrize("kind", list(LoadKind))
def test_a_service_finds_lost_launches(kind: LoadKind) -> None:
    assert run_serve(NumpyBackend(), kind)[-1]["event"] == "measured"
    with pytest.raises(WrongError, match="values are wrong"):
        run_serve(LosingBackend(), kind)


@pytest.mark.parametrize("role", list(Role))
def test_each_of_the_three_roles_finds_lost_launches(role: Role) -> None:
    run_trio(NumpyBackend(), role)
    with pytest.raises(WrongError, match="values are wrong"):
        run_trio(LosingBackend(), role)
