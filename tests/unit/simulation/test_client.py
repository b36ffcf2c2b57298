"""A simulated context, and the messages of the driver in any order and in pieces."""

import socket
import threading
from typing import Any

import pytest

from gpushare.simulation.client import CudaError, SimulatedContext
from gpushare.simulation.cuda_errors import MPS_RPC_FAILURE
from gpushare.simulation.wire import Channel, encode

OPENED = {"uuid": "GPU-1", "product": "NVIDIA H200", "sms": 132, "sms_enforced": 132}


def test_a_failure_that_comes_with_the_answer_ends_the_wait_at_once() -> None:
    ours, theirs = socket.socketpair()
    context = SimulatedContext(Channel(ours, lambda _: None), None, OPENED, 132)
    answer: dict[str, Any] = {"remaining_ms": 20_000}

    def driver() -> None:
        theirs.recv(4096)
        theirs.sendall(encode(answer) + encode({"event": "error", "error": MPS_RPC_FAILURE}))

    answering = threading.Thread(target=driver)
    answering.start()
    with pytest.raises(CudaError) as failed:
        context.synchronize()
    assert failed.value.code == MPS_RPC_FAILURE
    answering.join()
    theirs.close()
    context.close()
