"""The model behind the random cycles: which clients a step may end, and that a seed replays."""

import random

import pytest

from tests.cluster.cycles.steps import Step, choose
from tests.cluster.cycles.world import GPUS, Client, Kind, World


def world_of_two() -> World:
    world = World()
    for name in ("red", "green"):
        world.create(name, per_gpu=4, threads=25)
        world.started(Client(f"{name}-worker", name, Kind.WORKER))
    return world


def test_a_failed_gpu_may_end_its_own_clients_and_no_others() -> None:
    world = world_of_two()
    world.gpu_failed("red")
    assert set(world.clients) == {"green-worker"}
    assert world.doomed == {"red-worker"}


def test_a_crash_without_neighbours_spoils_the_next_client_alone() -> None:
    world = world_of_two()
    world.ended("red-worker")
    world.crashed("red")
    assert world.shares["red"].poisoned
    assert set(world.clients) == {"green-worker"}
    world.started(Client("next", "red", Kind.WORKER))
    assert not world.shares["red"].poisoned


def test_a_resize_ends_nobody_and_keeps_the_held_slots() -> None:
    world = world_of_two()
    for number in range(3):
        world.started(Client(f"more-{number}", "red", Kind.VICTIM))
    world.resize("red", per_gpu=1, threads=50)
    assert len(world.of("red")) == 4
    assert world.free_slots(world.shares["red"]) == 0
    assert world.capacity(world.shares["red"]) == 4
    world.settled()
    assert world.shares["red"].bound == 4


def test_a_third_share_waits_until_a_share_without_clients_is_gone() -> None:
    world = world_of_two()
    world.create("blue", per_gpu=2, threads=10)
    assert (world.shares["blue"].has_gpu, world.capacity(world.shares["blue"])) == (False, 0)
    world.delete("red")
    world.settled()
    assert "red" in world.shares, "it still has a client"
    world.ended("red-worker")
    world.settled()
    assert "red" not in world.shares
    assert world.capacity(world.shares["blue"]) == 2


def lived(seed: int, steps: int) -> list[Step]:
    """The steps of a seed, if every client starts."""
    world, chance, taken = World(), random.Random(seed), []
    for _ in range(steps):
        step = choose(world, chance)
        taken.append(step)
        carry_out(world, step)
        assert sum(share.has_gpu for share in world.shares.values()) <= GPUS
        assert all(len(world.of(share.name)) <= share.bound for share in world.shares.values())
    return taken


def carry_out(world: World, step: Step) -> None:
    match step.verb:
        case "create":
            world.create(step.share, step.per_gpu, step.threads)
        case "resize":
            world.resize(step.share, step.per_gpu, step.threads)
        case "delete":
            world.delete(step.share)
        case "start" if step.kind in (Kind.WORKER, Kind.VICTIM):
            for _ in range(step.count):
                world.started(Client(world.new_name(step.kind), step.share, step.kind))
        case "end":
            for name in step.clients:
                world.ended(name)
        case "kill-daemon" | "kill-server":
            world.gpu_failed(step.share)
    if world.numbered % 4 == 0:
        world.settled()


@pytest.mark.parametrize("seed", range(20))
def test_a_seed_gives_the_same_steps_again_and_keeps_to_the_slots(seed: int) -> None:
    assert lived(seed, 100) == lived(seed, 100)


def test_every_kind_of_step_comes_up() -> None:
    verbs = {step.verb for seed in range(5) for step in lived(seed, 100)}
    assert verbs == {
        "create", "resize", "delete", "start", "end",
        "kill-agent", "kill-operator", "kill-daemon", "kill-server", "restart-kubelet",
    }  # fmt: skip
