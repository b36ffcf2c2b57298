"""Pid 1 of the cluster's namespaces: prepares mounts and network, starts the components, and restarts them.

`cluster.up` runs it as `python3 -m localcluster.cluster.node NAME` in fresh namespaces. Never run it by hand. When it
dies, the kernel kills all processes of the namespaces and removes their mounts, rules and interfaces.
"""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from localcluster.cluster import apiserver
from localcluster.cluster.components import FIRST, THEN, Command, commands
from localcluster.cluster.layout import NODE_NAME, Layout, load
from localcluster.cluster.network import at_once

_COVERED = ("/run", "/var/lib", "/var/log")
_WHOLE_PROC = Path("/run/localcluster/proc")
# The kubelet would write these machine-wide settings. It sees files that already have its values.
_SYSCTLS = {"vm/overcommit_memory": 1, "vm/panic_on_oom": 0, "kernel/panic": 10, "kernel/panic_on_oops": 1}
_PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_COLLECTOR = {"GOGC": "400", "GOMEMLIMIT": "768MiB"}
"""Of Go's garbage: a ninth of a cluster's CPU time less (82 s for 92, of two tests), for 0.4 GiB of memory."""
_BACKOFF_S = (0.0, 1.0, 2.0, 5.0, 10.0)
_STABLE_S = 10.0


def backoff(failures: int) -> float:
    """Seconds until the next start. `failures`: how often in a row the component ended within 10 s of its start."""
    return _BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)]


@dataclass
class NodeSupervisor:
    """Starts components, and restarts those that end. Does not check their health."""

    argv: dict[str, Command]
    logs: Path
    env: dict[str, str]
    running: dict[int, str] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    due: dict[str, float] = field(default_factory=dict)

    def start(self, name: str) -> None:
        log = str(self.logs / f"{name}.log")
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        argv = self.argv[name]
        pid = os.posix_spawn(argv[0], argv, self.env, file_actions=actions, setsigmask=(), setpgroup=0)
        self.running[pid] = name
        self.started[name] = time.monotonic()

    def reap(self) -> None:
        """Reaps ended processes, including orphans of the namespace, and schedules the restart of components."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if name := self.running.pop(pid, None):
                self._schedule(name, os.waitstatus_to_exitcode(status))

    def _schedule(self, name: str, code: int) -> None:
        lived = time.monotonic() - self.started[name]
        self.failures[name] = self.failures.get(name, 0) + 1 if lived < _STABLE_S else 0
        wait = backoff(self.failures[name])
        self.due[name] = time.monotonic() + wait
        print(f"{time.strftime('%T')} {name} ended with {code} after {lived:.0f} s, starts in {wait:.0f} s", flush=True)

    def start_due(self) -> None:
        now = time.monotonic()
        for name in [name for name, when in self.due.items() if when <= now]:
            del self.due[name]
            self.start(name)

    def run(self) -> None:
        """Runs for ever. SIGCHLD must be blocked, so that none is lost between two waits."""
        while True:
            self.reap()
            self.start_due()
            signal.sigtimedwait([signal.SIGCHLD], 0.2 if self.due else 5.0)


def main(name: str) -> None:
    layout = load(name)
    if layout is None:
        raise SystemExit(f"cluster {name!r} has no state directory")
    _prepare_mounts(layout)
    _prepare_network(layout)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    supervisor = NodeSupervisor(commands(layout), layout.logs, _environment(layout))
    for component in FIRST:
        supervisor.start(component)
    apiserver.wait_for("apiserver ready", lambda: apiserver.is_ready(layout), 120)
    for component in THEN:
        supervisor.start(component)
    supervisor.run()


def _prepare_mounts(layout: Layout) -> None:
    # A peer group of its own: Bidirectional mounts work in pods, and no mount propagates to the machine.
    _run("mount", "--make-rshared", "/")
    kept = {path: os.open(path, os.O_PATH) for path in (layout.state, layout.programs.kube.parent)}
    for covered in _COVERED:
        _run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", covered)
    for path, descriptor in kept.items():
        if any(path.is_relative_to(covered) for covered in _COVERED):
            _bind(Path(f"/proc/self/fd/{descriptor}"), path, descriptor)
        os.close(descriptor)
    kubelet = Path("/var/lib/kubelet")
    kubelet.mkdir()
    _run("mount", "--bind", layout.kubelet, kubelet)
    # In a user namespace the kernel allows another proc only if a whole one is visible, and we cover parts of ours.
    _WHOLE_PROC.mkdir(parents=True)
    _run("mount", "-t", "proc", "-o", "nosuid,nodev,noexec", "proc", _WHOLE_PROC)
    for key, value in _SYSCTLS.items():
        _override(Path("/proc/sys") / key, f"{value}\n", layout.conf / key.replace("/", "."))


def _bind(source: Path, target: Path, descriptor: int) -> None:
    target.mkdir(parents=True, exist_ok=True)
    # Otherwise mount(8) would follow the link by name, to a path that is covered now.
    subprocess.run(
        ["mount", "--no-canonicalize", "--bind", source, target], check=True, timeout=30, pass_fds=(descriptor,)
    )


def _override(sysctl: Path, value: str, file: Path) -> None:
    if sysctl.read_text() != value:
        file.write_text(value)
        _run("mount", "--bind", file, sysctl)


def _prepare_network(layout: Layout) -> None:
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    if 6 in layout.network.versions:
        Path("/proc/sys/net/ipv6/conf/all/forwarding").write_text("1")
    _run("hostname", NODE_NAME)
    _run("ip", "link", "set", "lo", "up")
    apiserver.wait_for("eth0", Path("/proc/sys/net/ipv4/conf/eth0").exists, 30)
    _run("ip", "link", "set", "eth0", "up")
    for subnets in layout.network.subnets:
        _run("ip", "address", "add", f"{subnets.node}/{subnets.prefix}", "dev", "eth0", *at_once(subnets))
        _run("ip", f"-{subnets.version}", "route", "add", "default", "via", subnets.host)


def _environment(layout: Layout) -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if key not in _PROXIES and not key.startswith("PYTHON")}
    return env | _COLLECTOR | {"PATH": f"{layout.programs.runtime}:{_SYSTEM_PATH}", "HOME": "/var/lib/kubelet"}


def _run(*argv: str | Path) -> None:
    subprocess.run(argv, check=True, timeout=30)


if __name__ == "__main__":
    main(sys.argv[1])
