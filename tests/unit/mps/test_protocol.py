"""Which protocol a daemon is to speak: v3 needs an administrator, a driver and a control program that agree."""

from collections.abc import Callable

import pytest

from gpushare.mps.control import ControlError
from gpushare.mps.protocol import MOST_FAILURES, MpsProtocol, ProtocolSetting, choose
from gpushare.nvml.types import NvmlError

HELP = "Usage: …\nModules: server, namespace, client"


def raises(error: Exception) -> Callable[[], str]:
    def call() -> str:
        raise error

    return call


def test_a_driver_of_615_with_namespaces_gets_v3() -> None:
    for version in ("615.71.09", "615.0", "620.10", "1000.1"):
        protocol, why = choose(ProtocolSetting.AUTO, 0, lambda version=version: version, lambda: HELP)
        assert protocol is MpsProtocol.V3
        assert version in why


@pytest.mark.parametrize(
    ("version", "text", "why"),
    [
        ("580.159.04", HELP, "driver 615"),
        ("614.99", HELP, "driver 615"),
        ("", HELP, "driver 615"),
        ("six hundred", HELP, "driver 615"),
        ("٦١٥.1", HELP, "driver 615"),
        ("99999999999999999999.1", HELP, "driver 615"),
        (NvmlError("no driver"), HELP, "no driver"),
        ("615.71.09", "", "namespace, server"),
        ("615.71.09", "Modules: server", "namespace"),
        ("615.71.09", "a namespaces-like word and a server", "namespace"),
        ("615.71.09", ControlError("exit status 1"), "exit status 1"),
    ],
)
def test_every_doubt_means_v2_and_says_why(version: str | Exception, text: str | Exception, why: str) -> None:
    protocol, said = choose(
        ProtocolSetting.AUTO,
        0,
        raises(version) if isinstance(version, Exception) else lambda: version,
        raises(text) if isinstance(text, Exception) else lambda: text,
    )
    assert protocol is MpsProtocol.V2
    assert why in said


def test_v2_is_spoken_where_it_is_asked_for_and_nobody_is_asked() -> None:
    never = raises(AssertionError("asked"))
    assert choose(ProtocolSetting.V2, 0, never, never) == (MpsProtocol.V2, "")


@pytest.mark.parametrize(
    ("failures", "protocol"), [(MOST_FAILURES - 1, MpsProtocol.V3), (MOST_FAILURES, MpsProtocol.V2)]
)
def test_a_daemon_speaks_v2_after_others_ended_in_a_row(failures: int, protocol: MpsProtocol) -> None:
    assert choose(ProtocolSetting.AUTO, failures, lambda: "615.1", lambda: HELP)[0] is protocol
