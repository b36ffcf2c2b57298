"""A suite keeps what it has measured, whatever ends it."""

import pytest

from measurements.gpu.stack.steps import TookTooLongError
from measurements.gpu.stack.suite import Findings


def test_an_error_of_a_phase_is_recorded_and_the_next_phase_is_measured() -> None:
    findings = Findings(simulated=True, truth={})
    with findings.phase("first"):
        raise ValueError("wrong")
    with findings.phase("second"):
        findings.figures["second"] = 1
    assert (findings.failed, findings.figures) == (["first: ValueError: wrong"], {"second": 1})


def test_no_phase_goes_on_after_the_suites_time() -> None:
    findings = Findings(simulated=True, truth={})
    with pytest.raises(TookTooLongError), findings.phase("first"):
        raise TookTooLongError("suite took longer than 10 s")
