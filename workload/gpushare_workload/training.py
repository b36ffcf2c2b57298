"""What a rank of the scenario `ddp` does. Needs PyTorch, which only a rank imports: see `find_torch`.

The gradients of equal parts of a batch, averaged over the ranks, are those of the whole batch. So a model that is
trained by several ranks must come out as one that a single process trained on all of the data.
"""

from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from gpushare_workload.backend.seam import UnsupportedError
from gpushare_workload.report import WrongError
from gpushare_workload.stopping import StoppedError
from gpushare_workload.stopwatch import Stopwatch
from gpushare_workload.worker import Worker

SECONDS = 60
"""For every collective operation: a rank that is gone is an error, not a hang."""
FEATURES, HIDDEN = 32, 64
TOLERANCE = 1e-4
"""Relative, between several ranks and one process: their sums have another order, in float."""
RATE = 0.05
SMALLEST = 1e-6
LOCALHOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Course:
    ranks: int
    device: str
    """cuda or cpu."""
    steps: int
    batch: int
    """Rows for each rank."""
    seed: int


@dataclass(frozen=True, slots=True)
class Trained:
    device: str
    loss: float
    seconds: float
    difference: float
    """Largest relative difference of any parameter from those of one process."""


def find_torch() -> None:
    """Raises UnsupportedError where PyTorch is not installed."""
    if find_spec("torch") is None:
        raise UnsupportedError(
            "ddp needs PyTorch: pip install 'gpushare[torch]', or use an image built with --target workload-torch"
        )


def check_one_rank_per_gpu(devices: list[str]) -> None:
    """`devices` by rank. Raises UnsupportedError where two are the same GPU: NCCL would refuse it, or hang."""
    for rank, device in enumerate(devices):
        first = devices.index(device)
        if first != rank:
            raise UnsupportedError(
                f"ranks {first} and {rank} are both on {device}: NCCL takes one rank per GPU. Use --ranks "
                f"{len(set(devices))}, give the pod more whole GPUs, or try --device cpu"
            )


def rank(worker: Worker, course: Course) -> Trained:
    """Trains in step with the other ranks. Rank 0 serves the store that they meet by."""
    torch: Any = import_module("torch")
    distributed: Any = import_module("torch.distributed")
    limit = timedelta(seconds=SECONDS)
    if worker.index == 0:
        store = distributed.TCPStore(LOCALHOST, 0, course.ranks, is_master=True, timeout=limit, wait_for_workers=False)
        worker.send(store.port)
    else:
        store = distributed.TCPStore(LOCALHOST, worker.receive(), course.ranks, is_master=False, timeout=limit)
    with worker.using_gpu():
        device, name = _device(torch, course.device, worker.index)
        store.set(f"device/{worker.index}", name)
        names = [store.get(f"device/{index}").decode() for index in range(course.ranks)]
        if course.device == "cuda":
            check_one_rank_per_gpu(names)
        backend = "nccl" if course.device == "cuda" else "gloo"
        distributed.init_process_group(backend, store=store, rank=worker.index, world_size=course.ranks, timeout=limit)
        try:
            worker.start()
            return _train(torch, distributed, worker, course, device, name)
        finally:
            if course.device == "cuda":
                torch.cuda.synchronize()
            distributed.destroy_process_group()


def _device(torch: Any, kind: str, index: int) -> tuple[Any, str]:
    """The device of a rank, and a name by which two ranks on one GPU are told."""
    if kind == "cpu":
        return torch.device("cpu"), f"cpu of rank {index}"
    count = torch.cuda.device_count()
    if count == 0:
        raise UnsupportedError("PyTorch sees no GPU: use --device cpu, or a machine with one")
    device = torch.device("cuda", index % count)
    torch.cuda.set_device(device)
    return device, f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def _train(torch: Any, distributed: Any, worker: Worker, course: Course, device: Any, name: str) -> Trained:
    rows, target = _data(torch, course, device)
    mine = slice(worker.index * course.batch, (worker.index + 1) * course.batch)
    model = _model(torch, course, device)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    watch = Stopwatch()
    with watch:
        for _ in range(course.steps):
            _end_together(torch, distributed, worker, device)
            loss = _step(torch, parallel, optimizer, rows[mine], target[mine])
    difference = _difference(model, _train_alone(torch, course, device, rows, target))
    if not difference <= TOLERANCE:
        raise WrongError(f"parameters differ by {difference:g} from those that one process trained on all of the data")
    return Trained(name, loss, watch.seconds, difference)


def _train_alone(torch: Any, course: Course, device: Any, rows: Any, target: Any) -> Any:
    model = _model(torch, course, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(course.steps):
        _step(torch, model, optimizer, rows, target)
    return model


def _difference(one: Any, other: Any) -> float:
    """The largest, relative to the largest value of the same parameter."""
    pairs = [(a.detach(), b.detach()) for a, b in zip(one.parameters(), other.parameters(), strict=True)]
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=SMALLEST)) for a, b in pairs)


def _end_together(torch: Any, distributed: Any, worker: Worker, device: Any) -> None:
    """A rank that left alone would leave the others in a kernel that waits for it: so all leave at one step."""
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


def _model(torch: Any, course: Course, device: Any) -> Any:
    """The same values in every process."""
    torch.manual_seed(course.seed)
    layers = torch.nn.Sequential(torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1))
    return layers.to(device)


def _data(torch: Any, course: Course, device: Any) -> tuple[Any, Any]:
    numbers = torch.Generator().manual_seed(course.seed)
    rows = torch.randn(course.ranks * course.batch, FEATURES, generator=numbers)
    return rows.to(device), rows.square().mean(dim=1, keepdim=True).to(device)
