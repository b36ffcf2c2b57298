"""The command lines of the cluster's processes, in the order in which they are started."""

from localcluster.cluster.config import VOLUME_PLUGINS
from localcluster.cluster.layout import NODE_NAME, Layout
from localcluster.cluster.pki import FRONT_PROXY

# The apiserver needs etcd; containerd comes early so that images can be loaded. All others need the apiserver.
FIRST = ("etcd", "containerd", "kube-apiserver")
THEN = ("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")

Command = list[str]


def commands(layout: Layout) -> dict[str, Command]:
    """argv by component. argv[0] is an absolute path; its last part is the component's name."""
    arguments = {
        "etcd": _etcd(layout),
        "containerd": ["-c", f"{layout.conf}/containerd.toml"],
        "kube-apiserver": _apiserver(layout),
        "kube-controller-manager": _controller_manager(layout),
        "kube-scheduler": [*_kubeconfigs(layout, "scheduler"), "--leader-elect=false", "--bind-address=127.0.0.1"],
        "kubelet": [
            f"--config={layout.conf}/kubelet.yaml",
            f"--kubeconfig={layout.conf}/kubelet.kubeconfig",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={','.join(subnets.node for subnets in layout.network.subnets)}",
            "--node-labels=pool=gpu",
        ],
        "kube-proxy": [f"--config={layout.conf}/kube-proxy.yaml"],
    }
    directory = dict.fromkeys(arguments, layout.programs.kube) | {"containerd": layout.programs.runtime}
    return {name: [str(directory[name] / name), *argv] for name, argv in arguments.items()}


def _etcd(layout: Layout) -> Command:
    client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
    return [
        f"--data-dir={layout.state}/etcd",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def _apiserver(layout: Layout) -> Command:
    pki, network = layout.pki, layout.network
    return [
        "--etcd-servers=http://127.0.0.1:2379",
        f"--advertise-address={network.node_ip}",
        f"--bind-address={network.any_address}",
        "--secure-port=6443",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        f"--service-cluster-ip-range={','.join(subnets.services for subnets in network.subnets)}",
        f"--kubelet-client-certificate={pki}/apiserver-kubelet-client.crt",
        f"--kubelet-client-key={pki}/apiserver-kubelet-client.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        "--kubelet-preferred-address-types=InternalIP",
        "--allow-privileged=true",
        "--enable-aggregator-routing=true",
        f"--proxy-client-cert-file={pki}/{FRONT_PROXY}.crt",
        f"--proxy-client-key-file={pki}/{FRONT_PROXY}.key",
        f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
        f"--requestheader-allowed-names={FRONT_PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--audit-policy-file={layout.conf}/audit.yaml",
        f"--audit-log-path={layout.audit_log}",
        "--audit-log-maxsize=100",
        "--audit-log-maxbackup=2",
    ]


def _controller_manager(layout: Layout) -> Command:
    pki = layout.pki
    return [
        *_kubeconfigs(layout, "controller-manager"),
        f"--root-ca-file={pki}/ca.crt",
        f"--service-account-private-key-file={pki}/sa.key",
        "--use-service-account-credentials=true",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        # The default of 20 requests/s makes the controllers start 4 s later.
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        f"--flex-volume-plugin-dir={VOLUME_PLUGINS}",  # the default would be created under /usr/libexec
    ]


def _kubeconfigs(layout: Layout, name: str) -> Command:
    path = f"{layout.conf}/{name}.kubeconfig"
    return [f"--kubeconfig={path}", f"--authentication-kubeconfig={path}", f"--authorization-kubeconfig={path}"]
