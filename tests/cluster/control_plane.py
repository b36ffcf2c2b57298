"""etcd and kube-apiserver as two processes on loopback ports, for measurements that need a real API server.

No kubelet and no controllers: objects are what the measurement makes of them. The programs are those of the local
cluster (`python3 -m localcluster up` builds them once); nothing outside of the scratch directory is written.
"""

import os
import re
import secrets
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from gpushare.kube.client import Kube, connect
from localcluster.paths import cache_root

START_SECONDS = 90.0
MANAGER = "measurement"
_SETTINGS = re.compile(r"\b(MALLOC_\w+|SSL_CERT_FILE)=(\S+)")
"""What the image sets of glibc's heap and of OpenSSL."""
_OWN = ("KUBECONFIG", "PYTHONPATH", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""Variables of this process that a pod has not, or others."""
STOP_SECONDS = 30.0
_WITH_ACCOUNT = """
mount -t tmpfs none /run && mkdir -p /var/run/secrets/kubernetes.io &&
ln -s "$0" /var/run/secrets/kubernetes.io/serviceaccount && exec "$@"
"""


def programs() -> Path:
    """The directory with etcd and kube-apiserver. FileNotFoundError where the local cluster was never built."""
    folders = sorted(path.parent for path in cache_root().glob("kube-*/kube-apiserver"))
    if not folders:
        raise FileNotFoundError(f"no kube-apiserver in {cache_root()}: run `python3 -m localcluster up` once")
    return folders[-1]


def stop(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, and SIGKILL for what does not end by that."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class ControlPlane:
    """One cluster's state in `directory`. `running` may be entered again and again; `copy` gives an equal cluster.

    `etcd`, `port`: its address and the API server's port while the cluster runs.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.kubeconfig = directory / "kubeconfig"
        self.etcd = ""
        self.port = 0
        self._programs = programs()
        self.pids: dict[str, int] = {}
        """The PID of each program that runs."""

    def create(self) -> "ControlPlane":
        """A service account key, a token of a member of system:masters, and a kubeconfig for it."""
        self.directory.mkdir(parents=True)
        _openssl("genrsa", "-out", str(self.directory / "sa.key"), "2048")
        token = secrets.token_hex(16)
        (self.directory / "tokens").write_text(f"{token},measurement,measurement,system:masters\n")
        self._write_kubeconfig(token, 0)
        return self

    def copy(self, directory: Path) -> "ControlPlane":
        """A copy of a cluster that does not run."""
        shutil.copytree(self.directory, directory)
        return ControlPlane(directory)

    @contextmanager
    def running(self) -> Iterator["ControlPlane"]:
        """Ends both processes on the way out. TimeoutError when the API server does not become ready."""
        client, peer, secure = _free_port(), _free_port(), _free_port()
        token = (self.directory / "tokens").read_text().split(",")[0]
        self._write_kubeconfig(token, secure)
        self.etcd = f"http://127.0.0.1:{client}"
        self.port = secure
        processes: list[subprocess.Popen[bytes]] = []
        try:
            processes.append(self._start("etcd", _etcd(self.directory, client, peer)))
            processes.append(self._start("kube-apiserver", _apiserver(self.directory, client, secure)))
            self.pids = {"etcd": processes[0].pid, "apiServer": processes[1].pid}
            _wait_until_ready(secure, token)
            yield self
        finally:
            for process in reversed(processes):
                stop(process)

    def as_in_a_pod(self, python: Path, tree: Path, command: list[str]) -> tuple[list[str], dict[str, str]]:
        """How `python` runs `command` of the code in `tree` as a pod's container does: with a service account, whose
        files are in a mount namespace of its own, with compiled code, with the image's settings of heap and OpenSSL,
        and without a kubeconfig. (command, environment); it needs root and the cluster, and its PID is that of the
        process that is started.
        """
        subprocess.run([str(python), "-m", "compileall", "-q", str(tree / "operator")], check=True, timeout=120)
        account = self.directory / "serviceaccount"
        account.mkdir(exist_ok=True)
        (account / "token").write_text((self.directory / "tokens").read_text().split(",")[0])
        shutil.copy(self.directory / "certificates/apiserver.crt", account / "ca.crt")
        environ = {key: value for key, value in os.environ.items() if key not in _OWN}
        environ |= {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.port)}
        environ["PYTHONPATH"] = f"{tree}/operator:{tree}"
        environ |= dict(_SETTINGS.findall((tree / "Dockerfile").read_text()))
        return ["unshare", "--mount", "sh", "-c", _WITH_ACCOUNT, str(account), str(python), *command], environ

    def _start(self, name: str, arguments: list[str]) -> "subprocess.Popen[bytes]":
        with (self.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen([str(self._programs / name), *arguments], stdout=log, stderr=log)

    def _write_kubeconfig(self, token: str, port: int) -> None:
        cluster = {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "local",
            "clusters": [{"name": "local", "cluster": cluster}],
            "users": [{"name": "local", "user": {"token": token}}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": "local"}}],
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))
        self.kubeconfig.chmod(0o600)


async def connected(plane: ControlPlane) -> Kube:
    return await connect(MANAGER, plane.kubeconfig)


def _etcd(directory: Path, client: int, peer: int) -> list[str]:
    return [
        f"--data-dir={directory}/etcd",
        f"--listen-client-urls=http://127.0.0.1:{client}",
        f"--advertise-client-urls=http://127.0.0.1:{client}",
        f"--listen-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-cluster=default=http://127.0.0.1:{peer}",
        "--force-new-cluster",  # the ports are new each time
        "--unsafe-no-fsync",
        "--log-level=error",
    ]


def _apiserver(directory: Path, etcd: int, port: int) -> list[str]:
    key = directory / "sa.key"
    return [
        f"--etcd-servers=http://127.0.0.1:{etcd}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",
        f"--secure-port={port}",
        f"--cert-dir={directory}/certificates",
        f"--token-auth-file={directory}/tokens",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--service-cluster-ip-range=10.250.0.0/24",
        "--disable-admission-plugins=ServiceAccount",
    ]


def _wait_until_ready(port: int, token: str) -> None:
    context = ssl._create_unverified_context()  # noqa: S323, SLF001 - our own process on loopback
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    opener.addheaders = [("Authorization", f"Bearer {token}")]
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        try:
            with opener.open(f"https://127.0.0.1:{port}/readyz", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise TimeoutError(f"the API server was not ready within {START_SECONDS:.0f} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, env=dict(os.environ))
