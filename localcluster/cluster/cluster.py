"""Starts and ends a cluster, and reaches into it. `up` and `down` are idempotent."""

import fnmatch
import glob
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from localcluster import overlay
from localcluster.cache import locked
from localcluster.cluster import apiserver, cgroups, config, pki, processes
from localcluster.cluster.layout import Layout, load, save
from localcluster.cluster.network import Network, at_once, choose, wanted_families
from localcluster.errors import LocalClusterError
from localcluster.images.buildah import Image
from localcluster.images.names import placeholder
from localcluster.paths import REPOSITORY, cache_root, require_own, state_dir, state_root
from localcluster.programs.build import Binaries
from localcluster.progress import say, tail

_NAMESPACES = ("--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child=SIGKILL", "--mount-proc")


def up(name: str, programs: Binaries) -> Layout:
    """Starts the cluster and returns when pods can be created. A running cluster is left alone.

    Raises LocalClusterError with the end of the relevant log, after it has ended what was started.
    """
    started = time.monotonic()
    with _locked(name):
        existing = load(name)
        if existing and processes.init(existing):
            say(f"cluster {name!r} is up")
            return existing
        down_locked(name)
        layout = _create(name, programs)
        try:
            _start(layout)
        except BaseException as error:
            log = tail(layout.logs / "node.log")
            down_locked(name)
            if isinstance(error, (OSError, subprocess.SubprocessError, LocalClusterError)):
                raise LocalClusterError(
                    f"cluster {name!r} did not start: {error}; the end of node.log:\n{log}"
                ) from error
            raise
    say(f"cluster {name!r} is up after {time.monotonic() - started:.1f} s")
    return layout


def _create(name: str, programs: Binaries) -> Layout:
    state = state_dir(name)
    with locked(cache_root() / "networks.lock"):
        layout = Layout(name, state, choose(name, _taken_interfaces(), wanted_families()), programs)
        state.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        require_own(state.parent)
        state.mkdir(mode=0o711)
        save(layout)
    layout.make_directories()
    snapshotter = "overlayfs" if overlay.works_in(state) else "native"
    pki.make_pki(layout)
    for relative, text in config.files(layout, snapshotter).items():
        (layout.conf / relative).write_text(text)
    (layout.conf / "runc").chmod(0o755)
    return layout


def _taken_interfaces() -> set[str]:
    """The interfaces that exist, and those of clusters that are being created."""
    recorded = {layout.network.interface for name in _names_recorded() if (layout := load(name))}
    return {entry.name for entry in Path("/sys/class/net").iterdir()} | recorded


def _start(layout: Layout) -> None:
    cgroups.create(layout.cgroup)
    argv = [
        "unshare",
        *_NAMESPACES,
        "--propagation",
        "private",
        sys.executable,
        "-m",
        "localcluster.cluster.node",
        layout.name,
    ]
    with (layout.logs / "node.log").open("ab") as log:
        process = subprocess.Popen(
            argv, cwd=REPOSITORY, start_new_session=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    (layout.state / "pid").write_text(str(process.pid))
    apiserver.wait_for("new network namespace", lambda: _has_own_network(process.pid), 10)
    _connect(layout.network, process.pid)
    apiserver.wait_for("containerd", lambda: process.poll() is not None or _listens(layout.containerd_socket), 60)
    load_images(layout, [layout.programs.pause_archive])
    apiserver.wait_for("apiserver", lambda: apiserver.is_ready(layout), 120)
    apiserver.wait_for("node Ready", lambda: apiserver.node_is_ready(layout), 120)
    apiserver.wait_for("default ServiceAccount", lambda: apiserver.pods_can_start(layout), 60)


def _has_own_network(pid: int) -> bool:
    return Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()


def _listens(path: Path) -> bool:
    """Tells whether a process listens on the socket: its file alone proves nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(5)
        with suppress(OSError):
            probe.connect(str(path))
            return True
    return False


def _connect(network: Network, pid: int) -> None:
    device = ["dev", network.interface]
    _ip("link", "add", network.interface, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    _ip("link", "set", network.interface, "up")
    for subnets in network.subnets:
        _ip("address", "add", f"{subnets.host}/{subnets.prefix}", *device, *at_once(subnets))
        for subnet in (subnets.pods, subnets.services):
            _ip("route", "add", subnet, "via", subnets.node, *device)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=30)


def load_images(layout: Layout, archives: list[Path]) -> None:
    """Imports OCI archives into containerd, under the names in the archives."""
    for archive in archives:
        _ctr(layout, "images", "import", str(archive))


def load_built(layout: Layout, built: Mapping[str, Image]) -> None:
    """Imports the repository's images, by target, also under the names that examples and chart use."""
    for target, image in built.items():
        load_images(layout, [Path(image.archive)])
        _ctr(layout, "images", "tag", "--force", image.image, placeholder(target))


def _ctr(layout: Layout, *arguments: str) -> None:
    argv = [f"{layout.programs.runtime}/ctr", *arguments]
    env = dict(os.environ) | _settings(layout)
    result = subprocess.run(argv, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, env=env)
    if result.returncode != 0:
        said = result.stderr.strip() or result.stdout.strip()
        raise LocalClusterError(f"ctr {' '.join(arguments)} failed: {said}")


def down(name: str) -> None:
    """Ends the cluster and removes its traces from the machine."""
    with _locked(name):
        down_locked(name)


def _locked(name: str) -> AbstractContextManager[None]:
    """A lock file has to outlive the directory that it protects, so it is in the cache."""
    return locked(cache_root() / f"cluster-{name}.lock")


def down_locked(name: str) -> None:
    """`down`, for a caller that holds the cluster's lock."""
    layout = load(name)
    if layout is None:
        shutil.rmtree(state_dir(name), ignore_errors=True)
        return
    _kill(layout)
    subprocess.run(["ip", "link", "delete", layout.network.interface], stderr=subprocess.DEVNULL, timeout=30)
    cgroups.remove(layout.cgroup)
    shutil.rmtree(layout.state)
    if not any(state_root().iterdir()):
        state_root().rmdir()


def _kill(layout: Layout) -> None:
    holder, init = processes.holder(layout), processes.init(layout)
    if holder is None:
        return
    os.kill(init or holder, signal.SIGKILL)
    apiserver.wait_for("end of the processes", lambda: not _exists(holder) and not (init and _exists(init)), 60)


def _exists(pid: int) -> bool:
    """Tells whether the process runs. A zombie has ended; if it is our child, this reaps it."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def running(name: str) -> Layout:
    """The layout of a cluster that runs. Raises LocalClusterError otherwise."""
    layout = load(name)
    if layout is None or processes.init(layout) is None:
        names = ", ".join(names_running()) or "none"
        raise LocalClusterError(f"cluster {name!r} is not up (up: {names}): start it with `up --name {name}`")
    return layout


def names_running() -> list[str]:
    layouts = [load(name) for name in _names_recorded()]
    return [layout.name for layout in layouts if layout and processes.init(layout)]


def names_matching(pattern: str) -> list[str]:
    """The clusters that match a shell pattern such as `test*`; a plain name even if there is no such cluster."""
    return fnmatch.filter(_names_recorded(), pattern) if glob.has_magic(pattern) else [pattern]


def _names_recorded() -> list[str]:
    require_own(state_root())
    return sorted(record.parent.name for record in state_root().glob("*/cluster.json"))


def enter(layout: Layout, command: list[str]) -> None:
    """Replaces this process by `command` (default: a shell) inside the node's namespaces."""
    pid = str(processes.init(layout))
    target = ["nsenter", "--target", pid, "--mount", "--net", "--pid", "--uts", "--ipc"]
    os.environ.update(environment(layout))
    os.execvp("nsenter", [*target, *(command or ["/bin/bash"])])  # noqa: S606 - becoming that command is the point


def environment(layout: Layout) -> dict[str, str]:
    """The environment of a process that uses the cluster, with the cluster's own kubectl, helm and ctr."""
    path = os.environ.get("PATH", "")
    return _settings(layout) | {"PATH": f"{_program_path(layout)}:{path}"}


def exports(layout: Layout) -> str:
    """`environment` as a line for a shell's `eval`."""
    settings = [f"{key}={shlex.quote(value)}" for key, value in _settings(layout).items()]
    return f'export {" ".join(settings)} PATH={shlex.quote(_program_path(layout))}:"$PATH"'


def _settings(layout: Layout) -> dict[str, str]:
    return {
        "KUBECONFIG": str(layout.kubeconfig),
        "KUBECACHEDIR": str(layout.state / "kubecache"),
        "CONTAINERD_ADDRESS": str(layout.containerd_socket),
        "CONTAINERD_NAMESPACE": "k8s.io",
    }


def _program_path(layout: Layout) -> str:
    programs = layout.programs
    return os.pathsep.join(str(path) for path in (layout.tools, programs.kube, programs.helm, programs.runtime))
