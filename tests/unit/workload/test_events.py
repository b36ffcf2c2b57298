"""What a program prints and records."""

import pytest

from gpushare_workload.events import without_folders


@pytest.mark.parametrize(
    ("word", "recorded"),
    [
        ("/root/out/parts/depth-1.json", "depth-1.json"),
        ("--json=/root/out/gpu.json", "--json=gpu.json"),
        ("/root/out/", "out"),
        ("/", "/"),
        ("-", "-"),
        ("--depths", "--depths"),
        ("examples/yolos.py", "examples/yolos.py"),
        ("https://example.com/model", "https://example.com/model"),
    ],
)
def test_a_recorded_command_has_no_folders_of_its_machine(word: str, recorded: str) -> None:
    assert without_folders(["run", word]) == ("run", recorded)
