"""Known vulnerabilities of the locked Python packages, as pip-audit's advisory service has them.

    python -m release.audit PIP_AUDIT                  # fails too where no advisories can be had
    python -m release.audit PIP_AUDIT --if-reachable   # says so, and passes

Guarantees: "none known" is said only of packages that the service answered for. Without a network, or behind an index
that serves packages and no advisories, pip-audit passes all the same; so it is first asked about a package whose
vulnerabilities are known for sure. Nothing is installed or resolved: a lock names every package with its version.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from localcluster.paths import REPOSITORY

KNOWN = "jinja2==2.4.1"
"""A package with advisories since 2014."""
SECONDS = 300
UNREACHABLE = 2


@dataclass(frozen=True)
class Answer:
    """`vulnerable`: a line for each package with known vulnerabilities. `unanswered`: packages without an answer."""

    vulnerable: tuple[str, ...] = ()
    unanswered: tuple[str, ...] = ()


Ask = Callable[[Path], Answer]
"""A function from a requirements file to the answer; AuditError where there is none."""


class AuditError(Exception):
    """The service did not answer. The text says why."""


def read(text: str) -> Answer:
    """pip-audit's JSON. Raises AuditError where it is something else."""
    try:
        dependencies = json.loads(text)["dependencies"]
        skipped = tuple(item["name"] for item in dependencies if "skip_reason" in item)
        lines = tuple(_line(item) for item in dependencies if item.get("vulns"))
    except (ValueError, KeyError, TypeError) as error:
        raise AuditError(f"pip-audit's answer cannot be read: {text[:200]!r}") from error
    return Answer(lines, skipped)


def _line(item: dict[str, object]) -> str:
    vulnerabilities = item["vulns"]
    assert isinstance(vulnerabilities, list)  # noqa: S101 - narrows for the type checker
    told = (
        f"{vulnerability['id']} (fixed in {', '.join(vulnerability['fix_versions']) or 'no release yet'})"
        for vulnerability in vulnerabilities
    )
    return f"{item['name']} {item['version']}: {'; '.join(told)}"


def audit(ask: Ask, locks: Iterable[Path], known: Path, if_reachable: bool) -> tuple[int, list[str]]:
    """(exit status, what to print). `known`: a requirements file of a package that is vulnerable for sure."""
    try:
        problem = "" if ask(known).vulnerable else "the package index in use answers with no advisories"
    except AuditError as error:
        problem = str(error)
    if problem:
        return 0 if if_reachable else UNREACHABLE, [f"vulnerabilities were NOT checked: {problem}"]
    lines, failed = [], False
    for lock in locks:
        try:
            answer = ask(lock)
        except AuditError as error:
            answer = Answer(unanswered=(str(error),))
        lines += [f"{lock.name}: {line}" for line in answer.vulnerable]
        lines += [f"{lock.name}: no answer for {name}" for name in answer.unanswered]
        failed |= bool(answer.vulnerable or answer.unanswered)
        if not (answer.vulnerable or answer.unanswered):
            lines.append(f"{lock.name}: no known vulnerability")
    return int(failed), lines


def asking(program: str) -> Ask:
    def ask(requirements: Path) -> Answer:
        options = ("--disable-pip", "--no-deps", "--progress-spinner=off", "--format=json", "--timeout=15")
        command = [program, *options, "--requirement", str(requirements)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise AuditError(f"pip-audit did not answer: {error}") from error
        if done.returncode not in (0, 1) or not done.stdout:
            raise AuditError(f"pip-audit failed: {(done.stderr.strip().splitlines() or ['no output'])[-1][:300]}")
        return read(done.stdout)

    return ask


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make audit", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("program", help="pip-audit")
    parser.add_argument("--if-reachable", action="store_true", help="pass where no advisories can be had")
    arguments = parser.parse_args(argv)
    locks = [REPOSITORY / "requirements.lock", *sorted((REPOSITORY / "requirements").glob("*.lock"))]
    with tempfile.TemporaryDirectory() as scratch:
        known = Path(scratch) / "known.txt"
        known.write_text(f"{KNOWN}\n")
        status, lines = audit(asking(arguments.program), locks, known, arguments.if_reachable)
    print("\n".join(lines), file=sys.stderr if status else sys.stdout)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
