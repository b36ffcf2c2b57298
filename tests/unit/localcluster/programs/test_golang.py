"""Which Go tool chain is new enough."""

import pytest

from localcluster.programs import golang


def test_the_go_tool_chain_must_satisfy_every_module() -> None:
    assert golang.needed_version(["module a\n\ngo 1.26.0\n", "go 1.26.6\n"]) == (1, 26, 6)


@pytest.mark.parametrize(
    ("output", "expected"), [("go1.26.8", (1, 26, 8)), ("go version go1.27.1 linux/amd64", (1, 27, 1)), ("devel", ())]
)
def test_the_version_of_an_installed_go_is_read(output: str, expected: tuple[int, ...]) -> None:
    assert golang.installed_version(output) == expected
