"""The generated code of the kubelet's interfaces is what its definitions make today."""

from pathlib import Path

import pytest

import gpushare

pytest.importorskip("grpc_tools")

FOLDER = "gpushare/agent/proto"
ROOT = Path(gpushare.__file__).parents[1]


def test_the_generated_code_is_current(tmp_path: Path) -> None:
    from gpushare.agent.proto.generate import generate

    generate(ROOT, tmp_path)
    fresh = {file.name: file.read_text() for file in (tmp_path / FOLDER).iterdir()}
    committed = {
        file.name: file.read_text() for file in (ROOT / FOLDER).iterdir() if file.name in fresh or "_pb2" in file.name
    }
    assert committed == fresh, "run python -m gpushare.agent.proto.generate"
    assert len(fresh) == 21
