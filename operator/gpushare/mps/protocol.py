"""Which protocol an MPS daemon is to speak: v2, or v3 where an administrator allows it and the driver has it.

That it has v3 is seen as NVIDIA documents it: a driver of release 615 or later, and a control program whose help for
protocol 3 lists the modules `server` and `namespace`. Any doubt means v2, which every driver has and which is measured.
"""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from gpushare.messages.wording import count_of
from gpushare.mps.control import PROGRAM, ControlError, daemon_environment, run_program
from gpushare.nvml.types import NvmlError

FIRST_DRIVER = 615
"""The first driver release with MPS v3."""
MODULES = frozenset({"server", "namespace"})
MOST_FAILURES = 3
"""The daemon after so many v3 daemons that ended in a row speaks v2."""
HELP_SECONDS = 5.0


class MpsProtocol(StrEnum):
    V2 = "V2"
    V3 = "V3"


class ProtocolSetting(StrEnum):
    """The chart's `mps.protocol`."""

    V2 = "V2"
    AUTO = "Auto"


def choose(
    setting: ProtocolSetting, failures: int, driver_version: Callable[[], str], help_text: Callable[[], str]
) -> tuple[MpsProtocol, str]:
    """The protocol, and why, as a sentence for the log; empty where there was nothing to choose.

    `failures`: daemons in a row that ended, up to now. `driver_version` may raise NvmlError, and `help_text`
    ControlError; either means v2.
    """
    if setting is ProtocolSetting.V2:
        return MpsProtocol.V2, ""
    if failures >= MOST_FAILURES:
        return _v2(f"{count_of(failures, 'daemon')} in a row ended")
    try:
        version = driver_version()
    except NvmlError as error:
        return _v2(f"the driver's version cannot be read: {error}")
    major = version.partition(".")[0]
    if not (major.isascii() and major.isdigit() and len(major) < 6 and int(major) >= FIRST_DRIVER):
        return _v2(f"v3 begins with driver {FIRST_DRIVER}, and this is {version[:32]}")
    try:
        words = help_text().split()
    except ControlError as error:
        return _v2(f"the control program gives no help for protocol 3: {error}")
    missing = MODULES - {word.strip(",:") for word in words}
    if missing:
        return _v2(f"the control program's help for protocol 3 does not list {', '.join(sorted(missing))}")
    return MpsProtocol.V3, f"MPS v3: driver {version[:32]} has it, and mps.protocol is Auto"


def _v2(why: str) -> tuple[MpsProtocol, str]:
    return MpsProtocol.V2, f"MPS v2: {why}"


def read_help(bin_dir: Path | None, pipe: Path, log: Path) -> str:
    """The control program's help for protocol 3. ControlError: it gives none."""
    program = str(bin_dir / PROGRAM) if bin_dir else PROGRAM
    code, text = run_program([program, "-p", "3", "-h"], daemon_environment(bin_dir, pipe, log), "", HELP_SECONDS)
    if code != 0:
        raise ControlError(f"exit status {code}: {text[:200]}")
    return text
