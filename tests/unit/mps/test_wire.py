"""Whatever stands in a file or message of the node, it is read as its model, or is an InvalidError."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.mps import wire

MODELS = [
    wire.DesiredDaemon,
    wire.DaemonState,
    wire.TurnRequest,
    wire.TurnAnswer,
    wire.SocketsRequest,
    wire.SocketsAnswer,
    wire.QueuedSocket,
    wire.ServedClients,
    wire.GpuGrants,
    wire.BrokerState,
]
WORDS = sorted({name for model in MODELS for name in model.__struct_encode_fields__} | {"pods", "reason", "message"})
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=0, max_value=120)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["Keep", "NoGrant", "Ready", "V2", "x" * 2000])
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=8),
    max_leaves=30,
)


def read(content: bytes, model: type[wire.WireModel]) -> wire.WireModel | None:
    try:
        return wire.decode(content, model)
    except wire.InvalidError:
        return None


@given(st.binary(max_size=200), st.sampled_from(MODELS))
def test_any_bytes_are_a_model_or_an_invalid_error(content: bytes, model: type[wire.WireModel]) -> None:
    read(content, model)


@given(TREES, st.sampled_from(MODELS))
def test_any_json_is_a_model_that_reads_as_it_was_written_or_an_error(tree: Any, model: type[wire.WireModel]) -> None:
    value = read(json.dumps(tree).encode(), model)
    if value is not None:
        assert wire.decode(wire.encode(value), model) == value


@pytest.mark.parametrize("opening", [b"[", b'{"pods":', b'{"refusals":[{"reason":'])
def test_json_of_any_depth_is_an_invalid_error(opening: bytes) -> None:
    with pytest.raises(wire.InvalidError):
        wire.decode(opening * 100_000, wire.GpuGrants)
