"""Builds Kubernetes, containerd, runc, the CNI plugins, Helm and the pause image from pinned sources, once per machine.

Each component is a cache entry, named by a hash of its go.mod, go.sum, sources and flags. go.sum verifies every
download. Go's own caches are used as the user has configured them, and never cleaned.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from localcluster.cache import build_once, contents, key_of
from localcluster.errors import LocalClusterError
from localcluster.paths import SOURCES
from localcluster.programs.golang import find_go
from localcluster.programs.oci import write_static_image
from localcluster.progress import run_long

PAUSE_IMAGE = "localhost/gpushare-pause:1"
KUEUE_IMAGE = "localhost/kueue:1"
ADAPTER_IMAGE = "localhost/prometheus-adapter:1"
KUBE_PROGRAMS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubectl",
)

KUBERNETES = {"1.37": "1.37.0", "1.36": "1.36.3"}
"""The releases of Kubernetes that a cluster can be of, by minor version; the first is the default."""
KUBERNETES_SETTING = "GPUSHARE_KUBERNETES"
_HELM_VERSION = "4.3.0"
_KUEUE_VERSION = "0.19.2"
_RUNTIME_PACKAGES = (
    "github.com/containerd/containerd/v2/cmd/containerd",
    "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
    "github.com/containerd/containerd/v2/cmd/ctr",
    "github.com/containernetworking/plugins/plugins/ipam/host-local",
    "github.com/containernetworking/plugins/plugins/main/bridge",
    "github.com/containernetworking/plugins/plugins/main/loopback",
)


_NVIDIA_PROGRAMS = ("nvidia-cdi-hook", "nvidia-container-runtime", "nvidia-ctk")


@dataclass(frozen=True)
class GoBuild:
    """One `go build`: flags, packages and environment."""

    flags: tuple[str, ...]
    packages: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=lambda: {"CGO_ENABLED": "0"})


@dataclass(frozen=True)
class Component:
    """A directory with go.mod and go.sum, and its builds. `links`: further names of `program`; `module`: the name of
    the .mod and the .sum of one release, where a directory has those of several."""

    name: str
    label: str
    builds: tuple[GoBuild, ...]
    program: str = ""
    links: tuple[str, ...] = ()
    module: str = ""

    def entry(self, cache: Path) -> Path:
        """The cache directory of this exact build."""
        flags = [repr((build.flags, build.packages, sorted(build.env.items()))) for build in self.builds]
        return cache / f"{self.name}-{key_of(contents(SOURCES, self.sources), *flags, *self.links)}"

    @property
    def sources(self) -> list[str]:
        if not self.module:
            return [self.name]
        return [f"{self.name}/{file}" for file in ("main.go", f"{self.module}.mod", f"{self.module}.sum")]

    @property
    def modfile(self) -> list[str]:
        return [] if self.module in ("", "go") else [f"-modfile={self.module}.mod"]


def kubernetes_minor(environment: Mapping[str, str] = os.environ) -> str:
    """Which Kubernetes GPUSHARE_KUBERNETES asks for. Raises LocalClusterError for one that is not known."""
    asked = environment.get(KUBERNETES_SETTING) or next(iter(KUBERNETES))
    if asked not in KUBERNETES:
        raise LocalClusterError(f"{KUBERNETES_SETTING}={asked!r}: there are {', '.join(KUBERNETES)}")
    return asked


def kube_component(minor: str) -> Component:
    version, default = KUBERNETES[minor], minor == next(iter(KUBERNETES))
    stamp = {
        "gitVersion": f"v{version}", "gitMajor": "1", "gitMinor": minor.partition(".")[2], "gitTreeState": "clean",
    }  # fmt: skip
    stamps = " ".join(
        f"-X {package}.{name}={value}"
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for name, value in stamp.items()
    )
    return Component(
        "kube",
        f"Kubernetes {version} (7 to 16 min on two cores)",
        (GoBuild(("-tags", "selinux,notest,grpcnotrace", "-ldflags", f"-s -w {stamps}"), (".",)),),
        program="localkube",
        links=KUBE_PROGRAMS,
        module="go" if default else f"go{minor}",
    )


RUNTIME = Component(
    "runtime",
    "containerd, runc and CNI plugins (1.5 to 3 min)",
    (
        GoBuild(("-tags", "no_btrfs no_devmapper no_zfs urfave_cli_no_docs", "-ldflags", "-s -w"), _RUNTIME_PACKAGES),
        GoBuild(
            ("-tags", "seccomp netgo osusergo", "-ldflags", "-s -w -extldflags -static"),
            ("github.com/opencontainers/runc",),
            {"CGO_ENABLED": "1"},
        ),
    ),
)
HELM = Component(
    "helm",
    f"Helm {_HELM_VERSION} (2 min)",
    (
        GoBuild(
            ("-ldflags", f"-s -w -X helm.sh/helm/v4/internal/version.version=v{_HELM_VERSION}"),
            ("helm.sh/helm/v4/cmd/helm",),
        ),
    ),
)

PROMETHEUS = Component(
    "prometheus",
    "Prometheus and its promtool (4 min; for the alerts' and the dashboard's tests)",
    # Of the service discoveries, whose clients of a dozen clouds would come along, Kubernetes' alone.
    (
        GoBuild(
            ("-tags", "remove_all_sd,enable_kubernetes_sd", "-ldflags", "-s -w"),
            ("github.com/prometheus/prometheus/cmd/prometheus", "github.com/prometheus/prometheus/cmd/promtool"),
        ),
    ),
)
COLLECTOR = Component(
    "otelcol",
    "an OpenTelemetry Collector (for one test; 8 min)",
    (GoBuild(("-tags", "remove_all_sd,enable_kubernetes_sd", "-ldflags", "-s -w"), (".",)),),
)
NVIDIA = Component(
    "nvidia",
    "NVIDIA's container runtime (for the tests of its RuntimeClass; 1 to 2 min)",
    # NVML's functions are looked up when they are called: there may be no driver.
    (
        GoBuild(
            ("-ldflags", "-s -w -extldflags=-Wl,--export-dynamic,--unresolved-symbols=ignore-in-object-files,-z,lazy"),
            tuple(f"github.com/NVIDIA/nvidia-container-toolkit/cmd/{name}" for name in _NVIDIA_PROGRAMS),
            {"CGO_ENABLED": "1"},
        ),
    ),
)
CERT_MANAGER = Component(
    "certmanager",
    "cert-manager's controllers (for one test)",
    (GoBuild(("-ldflags", "-s -w"), (".",)),),
)
KUEUE = Component(
    "kueue",
    f"Kueue {_KUEUE_VERSION} (for its tests; 2.5 min)",
    (
        GoBuild(
            ("-ldflags", f"-s -w -X sigs.k8s.io/kueue/pkg/version.GitVersion=v{_KUEUE_VERSION}"),
            ("sigs.k8s.io/kueue/cmd/kueue",),
        ),
    ),
)

ADAPTER = Component(
    "adapter",
    "prometheus-adapter (for the test of a HorizontalPodAutoscaler; 2 min)",
    (GoBuild(("-ldflags", "-s -w"), ("sigs.k8s.io/prometheus-adapter/cmd/adapter",)),),
)


@dataclass(frozen=True)
class Binaries:
    """The directories of the built programs."""

    kube: Path
    runtime: Path
    helm: Path
    pause: Path

    @property
    def pause_archive(self) -> Path:
        return self.pause / "pause.tar"


def binaries(cache: Path, minor: str = "") -> Binaries:
    """The cache entries of the current sources, whether they exist yet or not. `minor`: of Kubernetes; empty: the one
    that `kubernetes_minor` says."""
    pause = cache / f"pause-{key_of(contents(SOURCES, ['pause.c', 'oci.py']))}"
    kube = kube_component(minor or kubernetes_minor())
    return Binaries(kube.entry(cache), RUNTIME.entry(cache), HELM.entry(cache), pause)


def build(cache: Path) -> Binaries:
    """Builds the missing components. Raises LocalClusterError with the end of the log of one that fails."""
    minor = kubernetes_minor()
    programs = binaries(cache, minor)
    build_once(programs.pause, _build_pause)
    for component in (RUNTIME, kube_component(minor), HELM):
        build_component(component, cache)
    return programs


def build_component(component: Component, cache: Path) -> Path:
    """A directory with the component's programs."""
    return build_once(component.entry(cache), lambda directory: _build_go(component, directory, cache))


def build_cert_manager(cache: Path) -> Path:
    """A directory with the program `certmanager` and its definitions in `crds`.

    Only the test of the chart's certificates mode CertManager needs it; no cluster does.
    """
    return build_once(CERT_MANAGER.entry(cache), lambda directory: _build_cert_manager(directory, cache))


def build_kueue(cache: Path) -> Path:
    """A directory with Kueue's own Helm chart in `chart`, and its image as the OCI archive `kueue.tar`.

    Only its tests need it (`make kueue-test`); no cluster does.
    """
    return build_once(KUEUE.entry(cache), lambda directory: _build_kueue(directory, cache))


def build_adapter(cache: Path) -> Path:
    """prometheus-adapter's image, an OCI archive. Only one test needs it (`make hpa-test`); no cluster does."""
    return build_once(ADAPTER.entry(cache), lambda directory: _build_adapter(directory, cache)) / "adapter.tar"


def _build_cert_manager(directory: Path, cache: Path) -> None:
    _build_go(CERT_MANAGER, directory, cache)
    source = _sources_of("github.com/cert-manager/cert-manager", CERT_MANAGER, cache)
    shutil.copytree(source / "deploy" / "crds", directory / "crds")


def _build_adapter(directory: Path, cache: Path) -> None:
    _build_go(ADAPTER, directory, cache)
    _pack(directory / "adapter", ADAPTER_IMAGE, directory / "adapter.tar")


def _build_kueue(directory: Path, cache: Path) -> None:
    _build_go(KUEUE, directory, cache)
    manager = (directory / "kueue").rename(directory / "manager")  # as the chart calls it
    _pack(manager, KUEUE_IMAGE, directory / "kueue.tar")
    shutil.copytree(_sources_of("sigs.k8s.io/kueue", KUEUE, cache) / "charts" / "kueue", directory / "chart")


def _pack(program: Path, image: str, archive: Path) -> None:
    """Leaves the image in place of the program."""
    write_static_image(archive, image, program)
    program.unlink()


def _sources_of(module: str, component: Component, cache: Path) -> Path:
    """The folder where Go has unpacked a module that the component is built from."""
    question: list[str | Path] = [find_go(cache), "list", "-m", "-f", "{{.Dir}}", module]
    source = SOURCES / component.name
    answer = subprocess.run(question, check=True, capture_output=True, text=True, cwd=source, timeout=60)
    return Path(answer.stdout.strip())


def _build_go(component: Component, directory: Path, cache: Path) -> None:
    go, log = find_go(cache), cache / "logs" / f"{component.name}.log"
    source = SOURCES / component.name
    base = dict(os.environ, GOFLAGS="-mod=readonly -trimpath -buildvcs=false", GOTOOLCHAIN="local")
    run_long(
        f"download of sources for {component.name}",
        [go, "mod", "download", *component.modfile],
        log,
        limit_s=1800,
        env=base,
        cwd=source,
    )
    for step in component.builds:
        argv = [str(go), "build", *component.modfile, *step.flags, "-o", f"{directory}/", *step.packages]
        run_long(f"build of {component.label}", argv, log, limit_s=5400, env=base | dict(step.env), cwd=source)
    for link in component.links:
        (directory / link).symlink_to(component.program)


def _build_pause(directory: Path) -> None:
    compiler = shutil.which("cc") or "gcc"
    executable = directory / "pause"
    argv = [compiler, "-static", "-O2", "-s", "-o", str(executable), str(SOURCES / "pause.c")]
    subprocess.run(argv, check=True, timeout=60)
    write_static_image(directory / "pause.tar", PAUSE_IMAGE, executable)
