"""The configuration files of containerd, CNI, kubelet, kube-proxy and the apiserver's audit, as text. No I/O.

YAML is written as JSON, which is valid YAML and in the standard library.
"""

import json

from localcluster.cluster import nvidia_runtime
from localcluster.cluster.layout import CDI_DIRECTORIES, NODE_NAME, Layout
from localcluster.programs.build import PAUSE_IMAGE

VOLUME_PLUGINS = "/var/lib/kubelet/volumeplugins"
CONTAINERD_STATE = "/run/containerd"
_RUNC = r"""#!/bin/sh
# A machine that is itself confined may have no CAP_SYS_RESOURCE, and runc starts no container that asks for it.
for word; do
  if [ "$before" = --bundle ]; then
    bounding=$(sed -n 's/^CapBnd:[[:space:]]*//p' /proc/self/status)
    if [ $((0x$bounding >> 24 & 1)) -eq 0 ]; then
      sed -i 's/"CAP_SYS_RESOURCE",//g; s/,\?"CAP_SYS_RESOURCE"//g' "$word/config.json"
    fi
  fi
  before=$word
done
exec {runc} "$@"
"""


def files(layout: Layout, snapshotter: str) -> dict[str, str]:
    """Content by path relative to `layout.conf`. `snapshotter` is containerd's: overlayfs or native."""
    return {
        "containerd.toml": containerd(layout, snapshotter),
        "cni/10-bridge.conflist": json.dumps(cni(layout), indent=1),
        "kubelet.yaml": json.dumps(kubelet(layout), indent=1),
        "kube-proxy.yaml": json.dumps(kube_proxy(layout), indent=1),
        "audit.yaml": json.dumps(audit_policy(), indent=1),
        "runc": _RUNC.format(runc=layout.programs.runtime / "runc"),
        "resolv.conf": "",  # there is no cluster DNS, and the machine's resolver is unreachable from pods
    }


def containerd(layout: Layout, snapshotter: str) -> str:
    """containerd's TOML: CDI enabled, private directories, and settings that work without CAP_SYS_RESOURCE."""
    cri = "plugins.'io.containerd.cri.v1.runtime'"
    return f"""version = 3
root = '{layout.state}/containerd'
state = '{CONTAINERD_STATE}'
oom_score = 0
# The plugin `opt` would create /opt/containerd on the machine.
disabled_plugins = ['io.containerd.nri.v1.nri', 'io.containerd.internal.v1.opt']

[grpc]
  address = '{layout.containerd_socket}'

[plugins.'io.containerd.cri.v1.images']
  snapshotter = '{snapshotter}'
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '{PAUSE_IMAGE}'

[{cri}]
  restrict_oom_score_adj = true
  enable_cdi = true
  cdi_spec_dirs = {json.dumps(list(CDI_DIRECTORIES))}
  [{cri}.cni]
    bin_dirs = ['{layout.programs.runtime}']
    conf_dir = '{layout.conf}/cni'
  [{cri}.containerd]
    default_runtime_name = 'runc'
    [{cri}.containerd.runtimes.runc]
      runtime_type = 'io.containerd.runc.v2'
      [{cri}.containerd.runtimes.runc.options]
        BinaryName = '{layout.conf}/runc'
        SystemdCgroup = false
    [{cri}.containerd.runtimes.nvidia]
      runtime_type = 'io.containerd.runc.v2'
      [{cri}.containerd.runtimes.nvidia.options]
        BinaryName = '{nvidia_runtime.handler(layout)}'
        SystemdCgroup = false
"""


def cni(layout: Layout) -> dict[str, object]:
    """One bridge for all pods of the node."""
    ipam = {
        "type": "host-local",
        "dataDir": "/run/cni",
        "ranges": [[{"subnet": subnets.pods}] for subnets in layout.network.subnets],
        "routes": [{"dst": "::/0" if subnets.version == 6 else "0.0.0.0/0"} for subnets in layout.network.subnets],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipam": ipam}
    return {"cniVersion": "1.0.0", "name": "gpushare", "plugins": [bridge]}


def kubelet(layout: Layout) -> dict[str, object]:
    """KubeletConfiguration: for cgroup v1 and v2, with quick reports of capacity and quick restarts of containers."""
    pki = layout.pki
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.cgroup}",
        "oomScoreAdj": 0,
        "maxOpenFiles": 20000,
        "maxPods": 250,
        "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{pki}/kubelet-server.crt",
        "tlsPrivateKeyFile": f"{pki}/kubelet-server.key",
        "address": layout.network.any_address,
        "resolvConf": f"{layout.conf}/resolv.conf",
        "podLogsDir": f"{layout.state}/podlogs",
        "volumePluginDir": VOLUME_PLUGINS,
        "serializeImagePulls": False,
        "failSwapOn": False,
        "imageGCHighThresholdPercent": 100,
        "imageMinimumGCAge": "24h",
        "evictionHard": {
            "memory.available": "1%",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
            "nodefs.inodesFree": "1%",
        },
        # A device plugin's capacity travels with the node status; the report interval is for when nothing changed.
        "nodeStatusUpdateFrequency": "1s",
        "nodeStatusReportFrequency": "5m",
        "syncFrequency": "10s",
        "volumeStatsAggPeriod": "10s",  # so soon is a full emptyDir found; by default up to three minutes later
        "crashLoopBackOff": {"maxContainerRestartPeriod": "5s"},
        "containerLogMaxSize": "5Mi",
        "shutdownGracePeriod": "0s",
    }


def kube_proxy(layout: Layout) -> dict[str, object]:
    """KubeProxyConfiguration: nftables, and no change to sysctls of the machine."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": f"{layout.conf}/kube-proxy.kubeconfig"},
        "hostnameOverride": NODE_NAME,
        "mode": "nftables",
        "clusterCIDR": ",".join(subnets.pods for subnets in layout.network.subnets),
        "oomScoreAdj": 0,
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "nftables": {"syncPeriod": "30s", "minSyncPeriod": "100ms"},
    }


def audit_policy() -> dict[str, object]:
    """One line per finished request, without its content: enough to count who wrote what."""
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata"}],
    }
