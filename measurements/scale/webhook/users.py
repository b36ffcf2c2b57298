"""Many users who create slot pods at once: what does the webhook add to a creation, and does any fail?

    python -m measurements.scale.webhook.users --out measurements/results/scale/webhook-users.json

etcd, kube-apiserver and one webhook are real processes, and the API server asks the webhook as the chart says: the
chart's own configurations, both the mutating and the validating one, with the webhook's address put in. Each of 200
users creates a pod, waits for the answer, pauses, and creates the next one; pauses differ by half, so that users do not
fall into step. All users create slot pods for a while, and then as long pods without a slot, which no webhook is asked
about (`plain`): that is a round. `added` is what a round's slot pods took longer than its plain ones.

`failed` counts every creation that was not answered with a pod that the webhook had changed. `idlePercent` is the part
of the machine's cores that nobody used: the users themselves use them, too.
"""

import argparse
import asyncio
import base64
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gpushare.kube.client import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, Kube, Object, Resource
from localcluster.paths import REPOSITORY
from measurements.scale import results
from measurements.scale.webhook import bursts
from tests.cluster.control_plane import connected
from tests.unit.chart.rendered import of_kind

SLOT_PODS = "here"
USERS_OF_A_CLIENT = 50
"""Fewer than the connections that one client keeps, so that no user waits for a connection."""
WARM_SECONDS = 5.0


def chart_configurations(_: str, port: int, authority: bytes) -> Iterator[tuple[Resource, Object]]:
    """The chart's, for a webhook on this machine."""
    kinds = {"MutatingWebhookConfiguration": MUTATING_WEBHOOKS, "ValidatingWebhookConfiguration": VALIDATING_WEBHOOKS}
    for item in of_kind("default", *kinds):
        for hook in item["webhooks"]:
            hook["clientConfig"] = {
                "url": f"https://{bursts.HOST}:{port}{hook['clientConfig']['service']['path']}",
                "caBundle": base64.b64encode(authority).decode(),
            }
        yield kinds[item["kind"]], item


async def creations(kubes: list[Kube], kind: str, phase: str, rate: float, users: int, seconds: float) -> Object:
    """What `users` see who create `rate` pods a second together."""
    pause, end = users / rate, time.monotonic() + seconds
    took: list[float] = []
    failures: dict[str, int] = {}

    async def user(number: int) -> None:
        chance, turn = random.Random(number), 0
        await asyncio.sleep(chance.random() * pause)
        while time.monotonic() < end:
            answer = await bursts.create(kubes[number // USERS_OF_A_CLIENT], f"{phase}-{number}-{turn}", kind)
            turn += 1
            if isinstance(answer, str):
                failures[answer] = failures.get(answer, 0) + 1
            else:
                took.append(answer)
            await asyncio.sleep(min(pause * chance.uniform(0.5, 1.5), max(0.0, end - time.monotonic())))

    ticks = results.processor_ticks()
    await asyncio.gather(*(user(number) for number in range(users)))
    return {
        "creations": len(took) + sum(failures.values()),
        "perSecond": round(len(took) / (time.monotonic() - end + seconds), 1),
        "failed": sum(failures.values()),
        **({"failures": failures} if failures else {}),
        **bursts.quantiles(took),
        "idlePercent": results.idle_percent(ticks),
        "load": results.load(),
    }


async def rounds(kubes: list[Kube], rate: float, args: argparse.Namespace) -> Object:
    figures = []
    for number in range(args.rounds):
        kinds = (SLOT_PODS, bursts.PLAIN)
        figures_of_round: Object = {
            kind: await creations(kubes, kind, f"{kind}-{rate:g}-{number}", rate, args.users, args.seconds)
            for kind in kinds
        }
        slot, plain = (figures_of_round[kind] for kind in kinds)
        figures_of_round["added"] = {
            key: round(slot[key] - plain[key], 1) for key in ("p50", "p99") if key in slot and key in plain
        }
        print(f"{rate:g}/s, round {number + 1}: {json.dumps(figures_of_round)}", file=sys.stderr, flush=True)
        figures.append(figures_of_round)
    added = {key: [figures_of_round["added"][key] for figures_of_round in figures] for key in ("p50", "p99")}
    return {
        "creationsOfSlotPods": sum(figures_of_round[SLOT_PODS]["creations"] for figures_of_round in figures),
        "failed": sum(figures_of_round[SLOT_PODS]["failed"] for figures_of_round in figures),
        "addedMilliseconds": {
            key: {"median": round(statistics.median(values), 1), "least": min(values), "most": max(values)}
            for key, values in added.items()
        },
        "rounds": figures,
    }


async def run(args: argparse.Namespace, scratch: Path) -> Object:
    async with bursts.asked({SLOT_PODS: REPOSITORY}, scratch, chart_configurations) as plane:
        kubes = [await connected(plane) for _ in range(-(-args.users // USERS_OF_A_CLIENT))]
        try:
            for kind in (SLOT_PODS, bursts.PLAIN):
                await creations(kubes, kind, f"warm-{kind}", args.rates[0], args.users, WARM_SECONDS)
            figures = {f"{rate:g}": await rounds(kubes, rate, args) for rate in args.rates}
        finally:
            for kube in kubes:
                await kube.close()
    return {
        "what": "python -m measurements.scale.webhook.users; milliseconds of a creation, see its documentation",
        "environment": {"cpu": results.processor(), **results.machine()},
        "users": args.users,
        "secondsOfEachKind": args.seconds,
        "byCreationsPerSecond": figures,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--rates", type=float, nargs="+", default=[40.0, 150.0], help="creations a second")
    parser.add_argument("--seconds", type=float, default=15.0, help="of slot pods, and of plain ones, in each round")
    parser.add_argument("--rounds", type=int, default=5)
    results.add_out(parser)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpushare-users-") as scratch:
        result = asyncio.run(run(args, Path(scratch)))
    results.write(result, args.out)


if __name__ == "__main__":
    main()
