"""Every name that crosses a process boundary: API groups, labels, annotations, resources, environment variables, paths.

Another part, a user or a policy reads each of these names: changing one is an API change.
"""

import hashlib
import re

GROUP = "gpushare.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

SHARE_NAME_PATTERN = r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$"
"""A share's name becomes an extended resource, a label, a file name and a DaemonSet's name: at most 40 characters."""

_LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
RESOURCE_NAME_PATTERN = rf"^{_LABEL}(\.{_LABEL})*/[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?$"
"""An extended resource: a domain and a name."""

OPERATOR_LEASE = "gpushare-operator"
"""The Lease, in gpushare's own namespace, of the replica that leads."""

FINALIZER = f"{GROUP}/drain"
NODE_LABEL_PREFIX = f"share.{GROUP}/"
"""Node labels `share.gpushare.dev/<share>: "true"`: the node selector of the share's MPS DaemonSet."""

LABEL_DRIVER_RELEASED = f"{GROUP}/driver-released"
"""Node label `gpushare.dev/driver-released: "true"`: while the driver is replaced, nothing of a share is on the node,
and the node agent keeps away, too."""

ANNOTATION_THREADS = f"{GROUP}/threads"
ANNOTATION_MEMORY = f"{GROUP}/memory"
ANNOTATION_MEMORY_LIMIT = f"{GROUP}/memory-limit"
ANNOTATION_CLASS = f"{GROUP}/class"
ANNOTATION_BESIDE_PROTECTED = f"{GROUP}/threads-beside-protected"
GRANT_ANNOTATIONS = (ANNOTATION_THREADS, ANNOTATION_MEMORY, ANNOTATION_MEMORY_LIMIT)
"""Amounts that the containers of a pod ask for; `container_annotation` is one container's."""

ANNOTATION_TEMPLATE = f"{GROUP}/template"
"""An annotation of MPS pods: the digest of the template that they were made from. A pod whose digest differs from
its DaemonSet's is outdated."""
ANNOTATION_DRIVER_ROOT = f"{GROUP}/driver-root"
"""An annotation of MPS pods: the driver root whose libraries they mount. Another driver root needs new pods."""

MPS_RESOURCE = f"internal.{GROUP}/mps"
"""The resource by which our own MPS pods get the GPUs' device nodes; pods outside our namespace may not ask for it."""

ANNOTATION_SCHEDULERS_CLAIM = "resource.kubernetes.io/extended-resource-claim"
"""Kubernetes' own, on the claim that the scheduler makes for a pod's extended resources: a request per container."""

NVIDIA_RESOURCES = ("nvidia.com/gpu", "nvidia.com/mig-")
"""Prefixes of the resources of whole GPUs and MIG devices, which NVIDIA's device plugin delivers."""

NVIDIA_DRA_DRIVER = "gpu.nvidia.com"
"""NVIDIA's own DRA driver, which delivers whole GPUs and parts of them by claims."""

CDI_KIND = f"{GROUP}/gpu"

DRA_DRIVER = GROUP
"""The DRA driver of shares that are delivered by ResourceClaim, in their ResourceSlices and allocations."""

LABEL_SHARE = f"{GROUP}/share"
"""The label of objects that belong to a share: its DaemonSet and MPS pods, its DeviceClasses and
ResourceClaimTemplates."""

# Attributes and capacities of a device in a ResourceSlice of ours; unqualified names belong to the driver's domain.
ATTRIBUTE_SHARE = "share"
ATTRIBUTE_UUID = "uuid"
CAPACITY_THREADS = "threads"
CAPACITY_MEMORY = "memory"
CAPACITY_MEMORY_BURST = "memoryBurst"
"""What a claim may borrow above `memory`, which is reserved. So the scheduler adds up limits without any sum of ours:
of a GPU's claims they are `memory` and `memoryBurst` together."""
CAPACITY_CLIENTS = "clients"

TAINT_NOT_READY = f"{GROUP}/not-ready"
"""Taint (NoSchedule) of a device that takes no new client for now."""

STARTUP_TAINTS = (f"{GROUP}/agent-not-ready", "startup-taint.cluster-autoscaler.kubernetes.io/gpushare")
"""Taints that a node may be made with: the operator removes them once the node serves its shares. cluster-autoscaler
knows the second by its prefix, without a flag."""

SIZE_NAME_PATTERN = r"^[a-z]([-a-z0-9]{0,28}[a-z0-9])?$"
"""A size's name becomes part of a DeviceClass' and a ResourceClaimTemplate's name: at most 30 characters."""

# Fixed on every node, so that any version of any part finds the daemons' directories.
RUN_DIR = "/run/gpushare"
SIMULATION_DIR = "/run/gpushare-simulation"
CLIENT_PIPE_DIR = "/run/gpushare/mps"
"""The directory where a client container finds `control`: short, since a socket path may have 107 bytes at most."""
PRE_STOP_PROGRAM = "/run/gpushare/pre-stop"
"""The program in a client container that its preStop hook runs: native/pre_stop.c."""
CLIENT_LOG_DIR = "/var/log/gpushare-mps"
DEFAULT_PIPE_DIR = "/tmp/nvidia-mps"  # noqa: S108 - CUDA's own default
"""The directory where CUDA looks for `control` in a process without variables, such as one of ssh, su or cron."""
DEFAULT_LOG_DIR = "/var/log/nvidia-mps"
FRONT_PREFIX = "gpushare-"
"""The prefix of a driver's library's name, where a front library has its place: native/build.sh links against that."""

# Environment of a client container. CUDA_MPS_* are NVIDIA's; GPUSHARE_* are for the program to read.
ENV_PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
ENV_LOG_DIRECTORY = "CUDA_MPS_LOG_DIRECTORY"
ENV_THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
ENV_MEMORY = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
ENV_PRIORITY = "CUDA_MPS_CLIENT_PRIORITY"
ENV_GRANTED_THREADS = "GPUSHARE_THREADS"
ENV_GRANTED_MEMORY = "GPUSHARE_MEMORY_BYTES"
ENV_MEMORY_LIMIT = "GPUSHARE_MEMORY_LIMIT_BYTES"
ENV_GRANTED_PROCESSES = "GPUSHARE_PROCESSES"
ENV_GRANTED_FRACTION = "GPUSHARE_MEMORY_FRACTION"
ENV_SHARE = "GPUSHARE_SHARE"
ENV_CLASS = "GPUSHARE_CLASS"
"""A client's class. It makes the library in front of the driver's ask: what counts is the grant's, by the broker."""
ENV_BESIDE_PROTECTED = "GPUSHARE_THREADS_BESIDE_PROTECTED"
ENV_SHOWN_GPU = "GPUSHARE_GPU"
"""UUID of the GPU whose memory the front libraries show as the grant; set where they are."""
RESERVED_ENV_PREFIXES = ("CUDA_MPS_", "GPUSHARE_")


def slot_resource(share: str) -> str:
    """The extended resource of a share delivered by the device plugin: one unit is one slot."""
    return f"{GROUP}/{share}"


def container_annotation(annotation: str, container: str) -> str:
    """The annotation of one container, which goes before the pod's: `memory.gpushare.dev/app` for the container `app`.

    A container's name may be as long as the part behind the slash.
    """
    return f"{annotation.partition('/')[2]}.{GROUP}/{container}"


def share_of_resource(resource: str) -> str | None:
    """The share whose slot the resource is; None where it is no slot of ours."""
    prefix = f"{GROUP}/"
    return resource.removeprefix(prefix) if resource.startswith(prefix) else None


def device_class(share: str) -> str:
    """The DeviceClass of a share delivered by ResourceClaim."""
    return f"{share}.{GROUP}"


def size_class(share: str, size: str) -> str:
    """The DeviceClass of one named size. No share's own class collides with it: a share's name has no dot."""
    return f"{size}.{share}.{GROUP}"


def size_template(share: str, size: str) -> str:
    """The ResourceClaimTemplate of a named size, in every namespace that may use the share."""
    return f"{size}.{share}"


_CLASS_SUFFIX = f".{GROUP}"


def parse_device_class(name: str) -> tuple[str, str | None] | None:
    """(share, size or None) of a DeviceClass' name; None where the class is not ours."""
    if not name.endswith(_CLASS_SUFFIX):
        return None
    match name.removesuffix(_CLASS_SUFFIX).split("."):
        case [share] if share:
            return share, None
        case [size, share] if size and share:
            return share, size
    return None


def node_label(share: str) -> str:
    return NODE_LABEL_PREFIX + share


def daemonset_name(share: str, uid: str) -> str:
    """The DaemonSet of a share; a share that is created again gets another name.

    The DaemonSet controller distinguishes a node's pods by their owner's name (Kubernetes 1.37, syncNodeUpdate): while
    an old pod is ending, a DaemonSet of the same name would get no pod on that node.
    """
    return f"gpushare-mps-{share}-{uid[:5]}"


def slot_id(uuid: str, slot: int) -> str:
    """A device id as the kubelet sees it, e.g. `GPU-…::3`; at most 63 characters."""
    return f"{uuid}::{slot}"


_SLOT_ID = re.compile(r"^(?P<uuid>.+)::(?P<slot>\d+)$")


def is_slot_id(device_id: str) -> bool:
    """False of a whole GPU, whose device id is its UUID."""
    return _SLOT_ID.match(device_id) is not None


def parse_slot_id(device_id: str) -> tuple[str, int]:
    """(GPU uuid, slot number) of a device id; ValueError where it is not ours."""
    match = _SLOT_ID.match(device_id)
    if match is None:
        raise ValueError(f"device id {device_id!r} is not of the form <gpu uuid>::<slot>")
    return match["uuid"], int(match["slot"])


def cdi_device(uuid: str) -> str:
    """The fully qualified CDI device that carries a GPU's client edits."""
    return f"{CDI_KIND}={uuid}"


def plugin_socket(resource: str) -> str:
    """File name of a device plugin's socket: hashed, since names may be longer than a socket path allows."""
    return f"gpushare-{hashlib.sha256(resource.encode()).hexdigest()[:8]}.sock"


CLAIM_CDI_KIND = f"{GROUP}/claim"
"""CDI devices with what a prepared claim grants, environment variables alone: `gpushare.dev/claim=<uid>-<request>`."""


def device_name(uuid: str) -> str:
    """A GPU as ResourceSlices name it: a DNS label, so in lower case."""
    return uuid.lower()


def uuid_of_device(name: str) -> str:
    """The GPU that `device_name` named so: NVML writes all of a UUID in lower case but its first letters."""
    return f"GPU{name[3:]}" if name.startswith("gpu-") else name


def slice_name(node: str) -> str:
    """The node's one ResourceSlice; a DNS subdomain, as the node's own name."""
    suffix = f"-{DRA_DRIVER}"
    if len(node) + len(suffix) <= 253:
        return node + suffix
    return f"{node[:200].rstrip('.-')}-{hashlib.sha256(node.encode()).hexdigest()[:8]}{suffix}"
