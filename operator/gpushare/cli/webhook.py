"""`gpushare webhook`: the admission webhook for pods, claims and GpuShares."""

import argparse
import asyncio
import os
from importlib.metadata import version

from gpushare.kube.client import connect
from gpushare.process import event_loop
from gpushare.process.event_loop import on_end_signal
from gpushare.webhook.serving.server import WebhookSettings, serve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--namespace",
        default=os.environ.get("GPUSHARE_NAMESPACE", "gpushare-system"),
        help="namespace of gpushare (env GPUSHARE_NAMESPACE); default: gpushare-system",
    )
    parser.add_argument(
        "--secret",
        default=os.environ.get("GPUSHARE_WEBHOOK_SECRET", "gpushare-webhook-tls"),
        help="Secret with tls.crt and tls.key (env GPUSHARE_WEBHOOK_SECRET); default: gpushare-webhook-tls",
    )
    parser.add_argument("--port", type=int, default=8443, help="HTTPS port for the API server; default: 8443")
    parser.add_argument("--probe-port", type=int, default=8081, help="HTTP port of /healthz and /readyz; default: 8081")
    parser.add_argument(
        "--client-authority",
        default=os.environ.get("GPUSHARE_WEBHOOK_CLIENT_AUTHORITY", ""),
        help="PEM of the certificates that sign those of the API servers (env GPUSHARE_WEBHOOK_CLIENT_AUTHORITY);"
        " default: none, anybody may ask",
    )
    parser.add_argument(
        "--client-name", action="append", default=[], help="common name of an API server's certificate; default: any"
    )
    parser.add_argument(
        "--tolerate-taint", action="append", default=[], help="key of a taint of GPU nodes that pods of shares tolerate"
    )
    parser.add_argument("--metrics-port", type=int, default=0, help="HTTP port of /metrics; 0 (default): none")


def run(args: argparse.Namespace) -> int:
    settings = WebhookSettings(
        namespace=args.namespace,
        secret=args.secret,
        port=args.port,
        probe_port=args.probe_port,
        metrics_port=args.metrics_port,
        client_authority=args.client_authority,
        client_names=tuple(args.client_name),
        tolerated=tuple(args.tolerate_taint),
    )
    event_loop.run(_main(settings))
    return 0


async def _main(settings: WebhookSettings) -> None:
    stop = asyncio.Event()
    on_end_signal(stop.set)
    kube = await connect(f"gpushare-webhook/{version('gpushare')}")
    try:
        await serve(kube, settings, stop)
    finally:
        await kube.close()
