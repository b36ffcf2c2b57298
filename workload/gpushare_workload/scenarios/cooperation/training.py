"""One rank of the scenario `ddp`. Only ranks import PyTorch: see `find_torch`.

The gradients of equal parts of a batch, averaged over the ranks, are the gradients of the whole batch. Therefore
several ranks must train the same model as one process that trains on all of the data.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from gpushare_workload.backend.interface import UnsupportedError
from gpushare_workload.events import WrongError
from gpushare_workload.processes.stopping import StoppedError
from gpushare_workload.processes.worker import Worker
from gpushare_workload.scenarios.stopwatch import Stopwatch

COLLECTIVE_SECONDS = 60
"""Limit of every collective operation: a rank that is gone is an error, not a hang."""
FEATURES = 32
TOLERANCE = 1e-4
"""Relative difference between several ranks and one process, which add floats in another order."""
RATE = 3.2
"""Divided by the width of the model: a wider one diverges at the rate of a narrow one."""
SMALLEST = 1e-6
LOCALHOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """One training run; the same for every rank."""

    ranks: int
    device: str
    """The device: cuda or cpu."""
    steps: int
    """Steps of each of `repeats`, which follow `warmup` steps."""
    warmup: int
    repeats: int
    batch: int
    """Rows for each rank."""
    width: int
    """The width of the model's hidden layers."""
    seed: int

    @property
    def all_steps(self) -> int:
        return self.warmup + self.repeats * self.steps


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """What one rank reports."""

    device: str
    loss: float
    parameters: int
    seconds: tuple[float, ...]
    """Seconds of each repeat."""
    difference: float
    """Largest relative difference of any parameter from that of one process."""


def find_torch(find: Callable[[str], object] = find_spec) -> None:
    """Raises UnsupportedError if PyTorch is not installed."""
    if find("torch") is None:
        raise UnsupportedError(
            "ddp needs PyTorch: pip install 'gpushare[torch]', or use an image built with --target workload-torch"
        )


def check_one_rank_per_gpu(devices: list[str]) -> None:
    """`devices` by rank. Raises UnsupportedError for two ranks on one GPU, which NCCL would refuse, or hang."""
    for rank, device in enumerate(devices):
        first = devices.index(device)
        if first != rank:
            raise UnsupportedError(
                f"ranks {first} and {rank} are both on {device}: NCCL takes one rank per GPU. Use --ranks "
                f"{len(set(devices))}, give the pod more whole GPUs, or try --device cpu"
            )


def rank(worker: Worker, settings: TrainingSettings) -> TrainingResult:
    """Trains in step with the other ranks. Rank 0 serves the store through which the ranks find each other."""
    torch: Any = import_module("torch")
    distributed: Any = import_module("torch.distributed")
    limit = timedelta(seconds=COLLECTIVE_SECONDS)
    if worker.index == 0:
        store = distributed.TCPStore(
            LOCALHOST, 0, settings.ranks, is_master=True, timeout=limit, wait_for_workers=False
        )
        worker.send(store.port)
    else:
        store = distributed.TCPStore(LOCALHOST, worker.receive(), settings.ranks, is_master=False, timeout=limit)
    with worker.using_gpu():
        device, name = _device(torch, settings.device, worker.index)
        store.set(f"device/{worker.index}", name)
        names = [store.get(f"device/{index}").decode() for index in range(settings.ranks)]
        if settings.device == "cuda":
            check_one_rank_per_gpu(names)
        backend = "nccl" if settings.device == "cuda" else "gloo"
        distributed.init_process_group(
            backend, store=store, rank=worker.index, world_size=settings.ranks, timeout=limit
        )
        try:
            worker.start()
            return _train(torch, distributed, worker, settings, device, name)
        finally:
            if settings.device == "cuda":
                torch.cuda.synchronize()
            distributed.destroy_process_group()


def _device(torch: Any, kind: str, index: int) -> tuple[Any, str]:
    """The device of a rank, and a name that shows when two ranks have the same GPU."""
    if kind == "cpu":
        return torch.device("cpu"), f"cpu of rank {index}"
    count = torch.cuda.device_count()
    if count == 0:
        raise UnsupportedError("PyTorch sees no GPU: use --device cpu, or a machine with one")
    device = torch.device("cuda", index % count)
    torch.cuda.set_device(device)
    return device, f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def _train(
    torch: Any, distributed: Any, worker: Worker, settings: TrainingSettings, device: Any, name: str
) -> TrainingResult:
    rows, target = _data(torch, settings, device)
    batch = slice(worker.index * settings.batch, (worker.index + 1) * settings.batch)
    model = _model(torch, settings, device)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE / settings.width)
    seconds = []
    loss = 0.0
    for steps in (settings.warmup, *[settings.steps] * settings.repeats):
        watch = Stopwatch()
        with watch:
            for _ in range(steps):
                _end_together(torch, distributed, worker, device)
                loss = _step(torch, parallel, optimizer, rows[batch], target[batch])
        seconds.append(watch.seconds)
    difference = _difference(model, _train_alone(torch, settings, device, rows, target))
    if not difference <= TOLERANCE:
        raise WrongError(f"parameters differ by {difference:g} from those that one process trained on all of the data")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return TrainingResult(name, loss, parameters, tuple(seconds[1:]), difference)


def _train_alone(torch: Any, settings: TrainingSettings, device: Any, rows: Any, target: Any) -> Any:
    model = _model(torch, settings, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE / settings.width)
    for _ in range(settings.all_steps):
        _step(torch, model, optimizer, rows, target)
    return model


def _difference(model: Any, other: Any) -> float:
    """The largest, relative to the largest value of the same parameter."""
    pairs = [(a.detach(), b.detach()) for a, b in zip(model.parameters(), other.parameters(), strict=True)]
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=SMALLEST)) for a, b in pairs)


def _end_together(torch: Any, distributed: Any, worker: Worker, device: Any) -> None:
    """Ends all ranks at the same step: a rank that left alone would leave the others in a kernel that waits for it."""
    asked = torch.tensor([float(worker.asked())], device=device)
    distributed.all_reduce(asked, op=distributed.ReduceOp.MAX)
    if asked.item():
        raise StoppedError("asked to end before the work was done")


def _step(torch: Any, model: Any, optimizer: Any, rows: Any, target: Any) -> float:
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(rows), target)
    loss.backward()
    optimizer.step()
    return float(loss.item())


def _model(torch: Any, settings: TrainingSettings, device: Any) -> Any:
    """The same values in every process."""
    torch.manual_seed(settings.seed)
    nn, width = torch.nn, settings.width
    layers = nn.Sequential(
        nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
    )
    return layers.to(device)


def _data(torch: Any, settings: TrainingSettings, device: Any) -> tuple[Any, Any]:
    numbers = torch.Generator().manual_seed(settings.seed)
    rows = torch.randn(settings.ranks * settings.batch, FEATURES, generator=numbers)
    return rows.to(device), rows.square().mean(dim=1, keepdim=True).to(device)
