"""Locks name what is installed, to the byte; an audit says "none known" only of what it was answered for."""

import json
import re
import stat
from pathlib import Path

import pytest

from localcluster.paths import REPOSITORY
from release.audit import UNREACHABLE, Answer, AuditError, asking, audit, read

KNOWN, LOCK, OTHER = Path("known.txt"), Path("a.lock"), Path("b.lock")
VULNERABLE = {
    "dependencies": [
        {"name": "old", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2", "3"]}]},
        {"name": "older", "version": "0", "vulns": [{"id": "PYSEC-2", "fix_versions": []}]},
        {"name": "sound", "version": "4", "vulns": []},
        {"name": "unknown", "skip_reason": "not found"},
    ],
    "fixes": [],
}


def answering(**answers: Answer | AuditError):  # type: ignore[no-untyped-def]
    def ask(path: Path) -> Answer:
        answer = answers[path.stem]
        if isinstance(answer, AuditError):
            raise answer
        return answer

    return ask


BAD = Answer(vulnerable=("old 1: PYSEC-1",))


def test_the_answer_of_pip_audit_is_read_with_what_it_says_nothing_about() -> None:
    answer = read(json.dumps(VULNERABLE))
    assert answer.vulnerable == ("old 1: PYSEC-1 (fixed in 2, 3)", "older 0: PYSEC-2 (fixed in no release yet)")
    assert answer.unanswered == ("unknown",)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"dependencies": [{"vulns": [{}]}]}', "Traceback"])
def test_what_is_no_answer_is_an_error(text: str) -> None:
    with pytest.raises(AuditError, match="cannot be read"):
        read(text)


def test_a_vulnerability_fails_the_audit_by_name() -> None:
    status, lines = audit(answering(known=BAD, a=BAD, b=Answer()), [LOCK, OTHER], KNOWN, if_reachable=True)
    assert status == 1
    assert lines == ["a.lock: old 1: PYSEC-1", "b.lock: no known vulnerability"]


@pytest.mark.parametrize("answer", [Answer(), Answer(unanswered=("jinja2",)), AuditError("no route")], ids=repr)
@pytest.mark.parametrize(("if_reachable", "expected"), [(True, 0), (False, UNREACHABLE)])
def test_where_no_advisories_can_be_had_nothing_is_said_to_be_sound(
    answer: Answer | AuditError, if_reachable: bool, expected: int
) -> None:
    status, lines = audit(answering(known=answer, a=Answer()), [LOCK], KNOWN, if_reachable)
    assert status == expected
    (line,) = lines
    assert line.startswith("vulnerabilities were NOT checked: ")


@pytest.mark.parametrize("answer", [Answer(unanswered=("private",)), AuditError("cut off")], ids=repr)
def test_a_package_without_an_answer_fails_the_audit(answer: Answer | AuditError) -> None:
    status, lines = audit(answering(known=BAD, a=answer), [LOCK], KNOWN, if_reachable=True)
    assert status == 1
    assert lines[0].startswith("a.lock: no answer for ")


@pytest.mark.parametrize(
    ("script", "words"),
    [("echo broken >&2; exit 1", "broken"), ("exit 3", "no output"), ("echo '{}'; exit 0", "cannot be read")],
)
def test_a_pip_audit_that_fails_is_an_error_with_its_last_words(tmp_path: Path, script: str, words: str) -> None:
    program = tmp_path / "pip-audit"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(AuditError, match=words):
        asking(str(program))(LOCK)


def test_a_pip_audit_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="did not answer"):
        asking(str(tmp_path / "nothing"))(LOCK)


LOCKS = [REPOSITORY / "requirements.lock", *sorted((REPOSITORY / "requirements").glob("*.lock"))]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_locked_package_has_one_version_and_its_hashes(lock: Path) -> None:
    text = re.sub(r"\\\n", "", lock.read_text())
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    assert lines
    for line in lines:
        assert re.match(r"^[a-z0-9][a-z0-9._-]*(\[[a-z0-9,-]+\])?==\S+", line), line
        assert "--hash=sha256:" in line, line


INSTALLERS = re.compile(r"\b(apt|apt-get|dpkg|apk|dnf|yum|microdnf|curl|wget|git|npm|go|cargo)\s")


def instructions(dockerfile: str) -> list[str]:
    """One a line, without comments."""
    code = "\n".join(line for line in dockerfile.splitlines() if not line.lstrip().startswith("#"))
    return re.sub(r"\\\n\s*", "", code).splitlines()


def unpinned(dockerfile: str) -> list[str]:
    """What it takes from elsewhere without a digest or a hash."""
    stages, lines = {"scratch", "${BASE}"}, []
    for line in instructions(dockerfile):
        word, _, rest = line.partition(" ")
        if word == "ARG" and rest.startswith("BASE=") and not re.search(r"@sha256:[0-9a-f]{64}$", rest):
            lines.append(line)
        if word == "FROM":
            image, _, name = rest.partition(" AS ")
            lines += [] if image in stages else [line]
            stages.add(name)
        source = re.search(r"--from=(\S+)", line)
        if word == "ADD" or INSTALLERS.search(rest) or (source is not None and source[1] not in stages):
            lines.append(line)
        if "pip install" in line and not ("--require-hashes --no-deps" in line or "--no-index" in line):
            lines.append(line)
    return lines


def test_images_take_nothing_from_elsewhere_but_by_digest_or_hash() -> None:
    assert unpinned((REPOSITORY / "Dockerfile").read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "ARG BASE=python:3.13-slim",
        "FROM debian:12 AS tools",
        "RUN true && \\\n    apt-get install --yes gcc",
        "RUN pip install ziglang",
        "RUN pip install --require-hashes -r a.lock",
        "RUN curl --output /bin/x example",
        "ADD https://example.org/x /x",
        "COPY --from=busybox:1 /bin/sh /bin/sh",
    ],
)
def test_an_unpinned_line_of_the_dockerfile_is_found(line: str) -> None:
    assert len(unpinned(line)) == 1
