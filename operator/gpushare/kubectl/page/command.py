"""`kubectl gpushare ui`: opens a page on this machine, fed through the user's own kubeconfig, until Ctrl-C."""

import argparse
import secrets
import signal
import sys
import threading
import webbrowser
from collections.abc import Callable
from functools import partial

from gpushare.kube.resources import GPU_SHARES, KubeError
from gpushare.kubectl import options
from gpushare.kubectl.api import ApiReader, through_kubectl
from gpushare.kubectl.cluster import Cluster
from gpushare.kubectl.commands.scope import chosen_namespace
from gpushare.kubectl.commands.top import not_reached
from gpushare.kubectl.failures import UnreachableError, WrongInputError
from gpushare.kubectl.output.report import Report
from gpushare.kubectl.page.cluster.follow import FollowedCluster, following
from gpushare.kubectl.page.cluster.scrapes import AgentPod
from gpushare.kubectl.page.serving.local import ADDRESS, serving
from gpushare.kubectl.page.serving.pages import Pages

SECRET_BYTES = 24


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=_port, default=0, help="port on 127.0.0.1; default: any that is free")
    parser.add_argument("--no-browser", action="store_true", help="print the address, and open no browser")
    parser.set_defaults(output="")


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f'"{text}" is no port: write a whole number from 0 to 65535')
    return int(text)


def run(cluster: Cluster, args: argparse.Namespace) -> Report:
    """Returns when the program is told to end. Raises WrongInputError, KubeError and UnreachableError."""
    namespace = chosen_namespace(cluster, args)() if args.namespace else None
    context = getattr(args, "context", None) or _current_context(cluster)
    with through_kubectl(options.connection_flags(args)) as api:
        _require_installed(api)
        with following(api, args.system_namespace, namespace, partial(_metrics, api)) as followed:
            secret, once = secrets.token_urlsafe(SECRET_BYTES), secrets.token_urlsafe(SECRET_BYTES)
            about = {"cluster": context, "namespace": namespace or "", "systemNamespace": args.system_namespace}
            try:
                with serving(_pages(followed, about, secret, once), args.port) as port:
                    _show(f"http://{ADDRESS}:{port}/", secret, "" if args.no_browser else once)
                    _until_told_to_end()
            except OSError as error:
                raise WrongInputError(f"--port {args.port}: {error.strerror or error}; choose another one") from None
    return Report({}, [])


def _metrics(api: ApiReader, agent: AgentPod) -> str:
    try:
        return api.metrics(agent.namespace, agent.name, agent.port)
    except (KubeError, UnreachableError) as error:
        raise UnreachableError(not_reached(error)) from None


def _pages(followed: FollowedCluster, about: dict[str, str], secret: str, once: str) -> Pages:
    return Pages(followed.feed, followed.looking, followed.pod, about, (ADDRESS, "localhost"), secret, once)


def _current_context(cluster: Cluster) -> str:
    try:
        return cluster.run("config", "current-context").strip()
    except (KubeError, UnreachableError):
        return ""


def _require_installed(api: ApiReader) -> None:
    try:
        api.read(GPU_SHARES.path(), {"limit": "1"})
    except KubeError as error:
        if error.not_found:
            raise UnreachableError("gpushare is not installed in this cluster: it has no GpuShares") from None
        raise


def _show(server: str, secret: str, once: str) -> None:
    """`once`: opened in a browser; empty: none is."""
    print(
        f"{server}{secret}/\nThis page shows what you may read; keep its address to yourself. Ctrl-C ends it.",
        flush=True,
    )
    if once and not webbrowser.open(f"{server}{once}"):
        print("No browser was found: open the address above.", file=sys.stderr)


def _until_told_to_end(install: Callable[..., object] = signal.signal) -> None:
    ended = threading.Event()
    install(signal.SIGTERM, lambda *_: ended.set())
    while not ended.wait(1.0):  # a wait without end would not hear of Ctrl-C on every system
        pass
