"""Agent, broker and supervisor read no file but by `gpushare.process.bounded_read`, which cannot read without a bound.

Beside it only what is named here, with its reason.
"""

import ast
from collections.abc import Iterator

import pytest

from localcluster.paths import REPOSITORY

GPUSHARE = REPOSITORY / "operator" / "gpushare"
ROOMS = ("agent", "mps", "nvml", "process")
METHODS = {"read_text", "read_bytes"}
OPENED_BY = {
    "io.open", "io.open_code", "io.FileIO", "os.open", "os.fdopen", "os.read", "os.pread", "os.readv", "os.preadv",
    "os.popen", "codecs.open", "fileinput.input", "linecache.getline", "linecache.getlines", "mmap.mmap",
    "shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.copyfileobj", "shutil.copytree", "shutil.move",
    "tokenize.open", "os.sendfile", "numpy.fromfile",
}  # fmt: skip
EXCEPTIONS = {
    "process/bounded_read.py": "what it is",
    "agent/gpus/readers.py": "opens files of ours, so that nobody gets a lease on them, and reads nothing",
    "agent/process/namespaces.py": "opens a namespace, of which there is nothing to read",
    "mps/control.py": "the answer of a program that we started, of MAX_ANSWER_BYTES and with a time limit",
    "mps/files.py": "writes",
    "mps/pages/board.py": "maps the one page of a file of ours",
    "mps/pages/page.py": "reads one page of memory that we made, sealed against another size",
    "mps/supervisor/kept_sockets.py": "opens a socket's file with O_PATH, for its mode: there is nothing to read",
    "mps/supervisor/daemon_log.py": "writes, and copies a log of ours to another file, not into memory",
}


def ways_in(source: str) -> Iterator[int]:
    """The lines of a source that name a way to read a file."""
    tree = ast.parse(source)
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {name.asname or name.name: name.name for name in node.names}
        if isinstance(node, ast.ImportFrom):
            known |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and (node.id == "open" or known.get(node.id) in OPENED_BY):
            yield node.lineno
        if isinstance(node, ast.Attribute):
            base = known.get(node.value.id, "") if isinstance(node.value, ast.Name) else ""
            if base == "gpushare.process.bounded_read":
                continue
            if node.attr in METHODS or f"{base}.{node.attr}" in OPENED_BY:
                yield node.lineno
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _opens(node):
            yield node.lineno


def _opens(call: ast.Call) -> bool:
    """`path.open()` and `path.open("rb")`, and no method of ours, whose arguments are others."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "open":
        return False
    mode = call.args[0] if call.args else None
    keywords = {keyword.arg for keyword in call.keywords}
    is_mode = mode is None or (isinstance(mode, ast.Constant) and isinstance(mode.value, str))
    return is_mode and keywords <= {"mode", "buffering", "encoding", "errors", "newline"}


def sources() -> list[str]:
    paths = (path for room in ROOMS for path in sorted((GPUSHARE / room).rglob("*.py")))
    return [str(path.relative_to(GPUSHARE)) for path in paths]


def test_agent_broker_and_supervisor_read_within_bounds_alone() -> None:
    reads = [
        f"{file}:{line}"
        for file in sources()
        if file not in EXCEPTIONS
        for line in ways_in((GPUSHARE / file).read_text())
    ]
    assert reads == [], "read by gpushare.process.bounded_read"


@pytest.mark.parametrize("file", sorted(EXCEPTIONS.keys() - {"process/bounded_read.py"}))
def test_each_exception_is_needed(file: str) -> None:
    assert list(ways_in((GPUSHARE / file).read_text()))


@pytest.mark.parametrize(
    "source",
    [
        "open('/proc/1/stat')",
        "Path('/proc/1/stat').read_text()",
        "(proc / str(pid) / 'cgroup').read_bytes()",
        "read = path.read_text",
        "path.open()",
        "path.open('rb')",
        "path.open(mode='rb')",
        "import os\nos.open(path, os.O_RDONLY)",
        "import os as system\nsystem.read(descriptor, 1)",
        "from os import fdopen\nfdopen(3)",
        "import io\nio.open('/proc/1/stat')",
        "import shutil\nshutil.copyfile(a, b)",
    ],
)
def test_a_way_in_is_found(source: str) -> None:
    assert len(list(ways_in(source))) >= 1


@pytest.mark.parametrize(
    "source",
    [
        "from gpushare.process.bounded_read import read_text\nread_text(path)",
        "from gpushare.process import bounded_read\nbounded_read.read_bytes(path)",
        "self._gate.open(uuid, spec)",
        "await self._listener.open(services)",
        "async with server.open(port): pass",
        "import os\nos.close(3)",
    ],
)
def test_what_reads_no_file_is_none(source: str) -> None:
    assert list(ways_in(source)) == []
