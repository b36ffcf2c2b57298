"""The limit of open files."""

import resource

import pytest

from gpushare.process.open_files import nofile_remark


@pytest.mark.parametrize(("hard", "warned"), [(1024, True), (4096, False), (resource.RLIM_INFINITY, False)])
def test_a_hard_limit_that_is_too_low_gives_a_warning(hard: int, warned: bool) -> None:
    assert (f"may open {hard} files" in nofile_remark(hard)) is warned
