"""A throw-away certificate authority, certificates and kubeconfigs, made with the openssl command line.

Valid for a year, kept in the cluster's state directory (mode 0700), never reused.
"""

import base64
import json
import subprocess
from pathlib import Path

from localcluster.cluster.layout import NODE_NAME, Layout

_NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "365"]
_CLIENTS = {
    "admin": "/O=system:masters/CN=admin",
    "apiserver-kubelet-client": "/O=system:masters/CN=apiserver-kubelet-client",
    "controller-manager": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "kube-proxy": "/CN=system:kube-proxy",
    "kubelet": f"/O=system:nodes/CN=system:node:{NODE_NAME}",
}

FRONT_PROXY = "front-proxy-client"
"""The name as which the API server passes requests on to aggregated ones; the caller is in headers. It has its own
authority."""


def make_pki(layout: Layout) -> None:
    """Writes all keys and certificates below `layout.pki` and the kubeconfigs that use them."""
    pki, network = layout.pki, layout.network
    usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
    _new_certificate(pki, "ca", ["-subj", "/CN=gpushare-localcluster", *usage])
    _openssl(["genrsa", "-out", f"{pki}/sa.key", "2048"])
    _openssl(["rsa", "-in", f"{pki}/sa.key", "-pubout", "-out", f"{pki}/sa.pub"])
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"]
    nodes = [subnets.node for subnets in network.subnets]
    addresses = ["127.0.0.1", *nodes, *(subnets.apiserver_service_ip for subnets in network.subnets)]
    _certificate(pki, "apiserver", "/CN=kube-apiserver", _alternative_names(names, addresses))
    _certificate(pki, "kubelet-server", _CLIENTS["kubelet"], _alternative_names([NODE_NAME], [*nodes, "127.0.0.1"]))
    for name, subject in _CLIENTS.items():
        _certificate(pki, name, subject)
    _new_certificate(pki, "front-proxy-ca", ["-subj", "/CN=gpushare-localcluster-front-proxy", *usage])
    _certificate(pki, FRONT_PROXY, f"/CN={FRONT_PROXY}", authority="front-proxy-ca")
    for name in ("controller-manager", "scheduler", "kube-proxy", "kubelet"):
        _write_private(layout.conf / f"{name}.kubeconfig", kubeconfig(pki, name, network.server))
    _write_private(layout.kubeconfig, kubeconfig(pki, "admin", network.server))


def serving_certificate(pki: Path, name: str, address: str) -> tuple[Path, Path]:
    """A certificate and its key by which a server at `address` counts as the API server."""
    _certificate(pki, name, f"/CN={name}", _alternative_names([], [address]))
    return pki / f"{name}.crt", pki / f"{name}.key"


def kubeconfig(pki: Path, name: str, server: str) -> str:
    """A kubeconfig (JSON, which is YAML) with the credentials of `name` embedded."""
    cluster = {"server": server, "certificate-authority-data": _base64(pki / "ca.crt")}
    user = {
        "client-certificate-data": _base64(pki / f"{name}.crt"),
        "client-key-data": _base64(pki / f"{name}.key"),
    }
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "local",
        "clusters": [{"name": "local", "cluster": cluster}],
        "users": [{"name": "local", "user": user}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": "local"}}],
    }
    return json.dumps(config, indent=1)


def _certificate(pki: Path, name: str, subject: str, alternative_names: str = "", authority: str = "ca") -> None:
    usage = "clientAuth,serverAuth" if alternative_names else "clientAuth"
    extensions = ["-addext", f"extendedKeyUsage={usage}", "-addext", "basicConstraints=critical,CA:FALSE"]
    if alternative_names:
        extensions += ["-addext", f"subjectAltName={alternative_names}"]
    issuer = ["-CA", f"{pki}/{authority}.crt", "-CAkey", f"{pki}/{authority}.key"]
    _new_certificate(pki, name, [*issuer, "-subj", subject, *extensions])


def _new_certificate(pki: Path, name: str, arguments: list[str]) -> None:
    _openssl(["req", "-x509", *_NEW_KEY, *arguments, "-keyout", f"{pki}/{name}.key", "-out", f"{pki}/{name}.crt"])


def _alternative_names(names: list[str], addresses: list[str]) -> str:
    return ",".join([f"DNS:{name}" for name in names] + [f"IP:{address}" for address in addresses])


def _openssl(arguments: list[str]) -> None:
    subprocess.run(["openssl", *arguments], check=True, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)
