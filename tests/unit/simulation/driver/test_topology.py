"""How NVLink joins simulated GPUs: as on the boards that there are."""

import pytest

from gpushare.simulation.driver.state import DriverState, Topology, make_gpus


@pytest.mark.parametrize(
    ("topology", "count", "links"),
    [
        pytest.param(Topology.SWITCH, 8, ["1234567", "0234567", "0134567", "0124567", "0123567", "0123467", "0123457",
                                          "0123456"], id="an SXM board of eight: each with each"),
        pytest.param(Topology.PAIRS, 5, ["1", "0", "3", "2", ""], id="PCIe cards with bridges, and one without"),
        pytest.param(Topology.NONE, 3, ["", "", ""], id="PCIe cards"),
        pytest.param(Topology.SWITCH, 1, [""], id="one GPU alone"),
    ],
)  # fmt: skip
def test_the_gpus_that_each_one_reaches(topology: Topology, count: int, links: list[str]) -> None:
    gpus = make_gpus("node", count, "NVIDIA H200", 132, 143155)
    number = {gpu.uuid: str(gpu.index) for gpu in gpus}
    reached = DriverState(gpus, "580", "13.0", topology=topology).nvlinks()
    assert ["".join(number[other] for other in reached[gpu.uuid]) for gpu in gpus] == links


def test_a_gpu_that_is_lost_is_reached_by_nobody() -> None:
    gpus = make_gpus("node", 3, "NVIDIA H200", 132, 143155)
    gpus[1].lost = True
    assert DriverState(gpus, "580", "13.0").nvlinks() == {gpus[0].uuid: [gpus[2].uuid], gpus[2].uuid: [gpus[0].uuid]}
