"""One suite: its figures, its expectations, and the file with both."""

import json
import math
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measurements.gpu.environment import environment_block
from measurements.gpu.stack import bring
from measurements.gpu.stack.steps import TookTooLongError
from tests.cluster.harness import Harness


@dataclass
class Findings:
    """`figures` are written in any case. Each expectation is a sentence, with whether it held.

    `earlier`: the file of an earlier run on such a GPU, for a suite that goes on from it; or nothing.
    `part`: (1, 2) is the first of two parts that stacks beside each other do; `others`: what these have measured.
    `seconds`: after so many the suite is cut off. One that can go on later ends by itself before.
    """

    simulated: bool
    truth: dict[str, Any]
    earlier: dict[str, Any] = field(default_factory=dict)
    seconds: float = math.inf
    part: tuple[int, int] = (1, 1)
    others: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    expected: dict[str, bool] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def expect(self, sentence: str, holds: object) -> None:
        """An expectation that is checked several times has to hold each time."""
        self.expected[sentence] = self.expected.get(sentence, True) and bool(holds)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Records an error of this phase, so that the next phase is measured anyway. The end of the suite's time is
        raised again: no phase may go on after it.
        """
        try:
            yield
        except TookTooLongError:
            raise
        except Exception as error:  # noqa: BLE001 - what was measured until then is worth keeping
            self.failed.append(f"{name}: {type(error).__name__}: {error}")
            traceback.print_exc()


Suite = Callable[[Harness, Findings], None]


def run(name: str, suite: Suite, out: Path, seconds: float, part: tuple[int, int], also: list[Path]) -> bool:
    """Returns whether all was as expected. Writes `stack-NAME.json` in any case, and else a dump of the cluster too."""
    stack, record = bring.running()
    harness = Harness(stack)
    findings = Findings(
        record.simulated,
        record.truth,
        _earlier(out / f"stack-{name}.json", record),
        seconds,
        part,
        [stored for path in also if (stored := _earlier(path, record))],
    )
    began = time.monotonic()
    try:
        with findings.phase(name):
            suite(harness, findings)
    except TookTooLongError as error:
        findings.failed.append(str(error))
    as_expected = not findings.failed and bool(findings.expected) and all(findings.expected.values())
    result = {
        "suite": name,
        "simulated": record.simulated,
        "as_expected": as_expected,
        "expected": findings.expected,
        **({"failed": findings.failed} if findings.failed else {}),
        **findings.figures,
        "took_seconds": round(time.monotonic() - began, 1),
        "environment": {**environment_block(), "cpus": len(os.sched_getaffinity(0)), **_versions(harness)},
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / f"stack-{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    if not as_expected:
        harness.dump(out / f"stack-{name}-dump")
    return as_expected


def _earlier(path: Path, record: bring.Record) -> dict[str, Any]:
    """What was measured on such GPUs, however many the machine had."""
    if not path.exists():
        return {}
    stored: dict[str, Any] = json.loads(path.read_text())
    kinds, here = set(stored["environment"]["gpus"]), set(environment_block()["gpus"])
    return stored if stored["simulated"] is record.simulated and kinds == here else {}


def _versions(harness: Harness) -> dict[str, Any]:
    node = harness.kubectl.get("node", "node1")["status"]["nodeInfo"]
    names = ("kubeletVersion", "containerRuntimeVersion", "kernelVersion", "osImage")
    return {
        "node": {name: node[name] for name in names},
        "operator_image": harness.stack.operator_image,
        "workload_image": harness.stack.workload_image,
    }
