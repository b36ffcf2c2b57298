"""The grant of a container, as its environment describes it, and the SMs of a percentage."""

import pytest

from gpushare_workload.gpus.grant import MIB, ContainerGrant, granted_sms


@pytest.mark.parametrize(
    ("percent", "sms"), [(100, 132), (50, 66), (25, 32), (20, 26), (10, 12), (1, 8)], ids=lambda value: str(value)
)
def test_the_sms_of_a_percentage_are_those_measured_on_an_h200(percent: int, sms: int) -> None:
    assert granted_sms(132, percent) == sms


def test_a_grant_that_is_no_number_names_its_variable() -> None:
    with pytest.raises(ValueError, match="GPUSHARE_THREADS='many' is not a whole number"):
        ContainerGrant.from_environment({"GPUSHARE_THREADS": "many"})


def test_each_process_has_an_equal_part_of_the_memory_in_whole_mib() -> None:
    grant = ContainerGrant.from_environment({"GPUSHARE_MEMORY_BYTES": str(1000 * MIB), "GPUSHARE_PROCESSES": "3"})
    assert grant.process_memory == 333 * MIB
    assert ContainerGrant.from_environment({}).process_memory is None


def test_who_may_borrow_is_held_to_the_limit_and_not_to_what_is_reserved() -> None:
    reserved, limit = str(1000 * MIB), str(3000 * MIB)
    grant = ContainerGrant.from_environment({"GPUSHARE_MEMORY_BYTES": reserved, "GPUSHARE_MEMORY_LIMIT_BYTES": limit})
    assert grant.process_memory == 3000 * MIB
