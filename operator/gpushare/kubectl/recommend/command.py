"""`kubectl gpushare recommend`: which changes of shares the past supports, with the figures and the patch of each.

The past is read from a Prometheus, or else what the agents serve is watched for a short time. Nothing is changed.
"""

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from gpushare.api.gpunode import GpuNode
from gpushare.api.gpushare import GpuShare
from gpushare.api.quantity import parse_duration
from gpushare.kube.resources import GPU_NODES, GPU_SHARES
from gpushare.kubectl import options
from gpushare.kubectl.cluster import Cluster, installed
from gpushare.kubectl.failures import WrongInputError, require
from gpushare.kubectl.output.report import Report
from gpushare.kubectl.output.table import plain_lines
from gpushare.kubectl.recommend.look import watch_shares
from gpushare.kubectl.recommend.owners import with_owners
from gpushare.kubectl.recommend.prometheus import PrometheusApi, PrometheusSeries, checked_url
from gpushare.kubectl.recommend.queries import (
    KnownGpu,
    fault_question,
    history_of,
    known_gpus,
    questions,
    step_of,
)
from gpushare.kubectl.recommend.show import report_of
from gpushare.kubectl.rules.recommend.history import ShareHistory
from gpushare.kubectl.rules.recommend.pods import unused_parts
from gpushare.kubectl.rules.recommend.rules import recommend
from gpushare.kubectl.rules.recommend.sureness import duration
from gpushare.kubectl.views.objects import read
from gpushare.messages.wording import count_of

DAY = 86400
WINDOWS = range(3600, 90 * DAY + 1)
DEFAULT_WINDOW = 7 * DAY
WATCHES = range(10, 3600 + 1)
"""Seconds that may be asked for."""
AT_ONCE = 4
"""Questions to Prometheus at a time."""
LARGEST_TOKEN = 64 * 1024
_DAYS = re.compile(r"(\d{1,3})d")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--prometheus", metavar="URL", help="a Prometheus that scrapes gpushare, such as http://localhost:9090"
    )
    source.add_argument(
        "--watch",
        dest="watch_seconds",
        metavar="TIME",
        type=_seconds(WATCHES),
        default=120,
        help="without Prometheus: how long to look at what agents serve now; default: 2m",
    )
    parser.add_argument(
        "--window",
        metavar="TIME",
        type=_seconds(WINDOWS),
        help="how far to look back in Prometheus; default: 7d",
    )
    parser.add_argument("--bearer-token-file", metavar="FILE", help="a file with a token for Prometheus")
    parser.add_argument("--share", help="look at this GpuShare alone")
    options.add_output(parser, names=False, watch=False, tables=False)


def run(cluster: Cluster, args: argparse.Namespace) -> Report:
    """Raises WrongInputError, and UnreachableError where neither the cluster nor Prometheus answers."""
    if args.prometheus is None:
        for option, value in (("--window", args.window), ("--bearer-token-file", args.bearer_token_file)):
            if value is not None:
                raise WrongInputError(f"{option}: is for Prometheus; give --prometheus URL too")
    api = None if args.prometheus is None else PrometheusApi(checked_url(args.prometheus), _token(args))
    asked, nodes_asked = cluster.items(GPU_SHARES), cluster.items(GPU_NODES)
    shares = [share for share in read(GpuShare, installed(asked)) if not share.deleting]
    nodes = read(GpuNode, installed(nodes_asked))
    if args.share is not None:
        require("GpuShare", args.share, [share.name for share in shares])
        shares = [share for share in shares if share.name == args.share]
        if shares[0].whole:
            raise WrongInputError(f"--share {args.share}: it gives whole GPUs, so there is nothing of it to recommend")
    shares = [share for share in shares if not share.whole]
    gpus = known_gpus(nodes)
    if api is None:
        print(f"watching for {args.watch_seconds} s; --prometheus looks at days", file=sys.stderr, flush=True)
        histories, unreached = watch_shares(
            cluster, args.system_namespace, shares, gpus, args.watch_seconds, said=_progress
        )
        _progress("")
        if unreached:
            said = plain_lines(f"not reached, now and then or always: {'; '.join(unreached)}")
            print(said, file=sys.stderr, flush=True)
        source = "a watch of what the agents serve"
    else:
        histories = _asked(api, shares, gpus, args.window or DEFAULT_WINDOW, time.time())
        source = f"Prometheus at {api.url}"
    unused = unused_parts(nodes, [share.name for share in shares], datetime.now(UTC))
    advised = [recommend(history) for history in histories]
    advised = [replace(share, advice=tuple(with_owners(cluster, share.advice))) for share in advised]
    return report_of(source, advised, unused, options.connection_flags(args))


def _progress(line: str) -> None:
    """On a terminal one line that changes, elsewhere a line each. An empty one ends it."""
    live = sys.stderr.isatty()
    if live or line:
        print(f"\r{line}" if live and line else line, end="" if live and line else "\n", file=sys.stderr, flush=True)


def _asked(
    api: PrometheusApi, shares: Sequence[GpuShare], gpus: dict[str, KnownGpu], window: int, now: float
) -> list[ShareHistory]:
    if shares and not api.instant(f"count(last_over_time(gpushare_build_info[{window}s]))", now):
        raise WrongInputError(
            f"Prometheus at {api.url} has no metric of gpushare in this window: does it scrape gpushare's pods "
            "(docs/metrics.md), and is it the one of this cluster?"
        )
    pool = ThreadPoolExecutor(AT_ONCE)
    histories = []
    try:
        for number, share in enumerate(shares, 1):
            _progress(f"asking Prometheus about {duration(window)} of {number} of {count_of(len(shares), 'share')}")
            histories.append(_history(api, pool, share, gpus, window, now))
        _progress("")
        return histories
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _history(
    api: PrometheusApi,
    pool: ThreadPoolExecutor,
    share: GpuShare,
    gpus: dict[str, KnownGpu],
    window: int,
    now: float,
) -> ShareHistory:
    step = step_of(window)
    asked: dict[str, Future[list[PrometheusSeries]]] = {
        name: pool.submit(api.instant, query, now) for name, query in questions(share, window).items()
    }
    faults = pool.submit(api.over, fault_question(share, step), now - window, now, step)
    answers = {name: answer.result() for name, answer in asked.items()}
    return history_of(share, answers, faults.result(), gpus, now, window)


def _token(args: argparse.Namespace) -> str:
    if args.bearer_token_file is None:
        return ""
    try:
        with Path(args.bearer_token_file).open() as file:
            token = file.read(LARGEST_TOKEN + 1).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise WrongInputError(f"--bearer-token-file {args.bearer_token_file}: cannot be read: {why}") from None
    if not token or len(token) > LARGEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise WrongInputError(f"--bearer-token-file {args.bearer_token_file}: holds no token in one line")
    return token


def _seconds(allowed: range) -> Callable[[str], int]:
    """A parser of times such as 90s, 2h or 7d. argparse names the option where it raises."""

    def parse(text: str) -> int:
        days = _DAYS.fullmatch(text)
        try:
            seconds = int(days[1]) * DAY if days else parse_duration(text)
        except ValueError:
            seconds = -1
        if seconds not in allowed:
            least, most = duration(allowed[0]), duration(allowed[-1])
            raise argparse.ArgumentTypeError(
                f"{text!r}: write a time such as 90s, 5m, 36h or 7d, from {least} to {most}"
            )
        return seconds

    return parse
