"""What an event loop by poll(2) costs against one by epoll, beside many connections that say nothing.

    python -m measurements.scale.event_loop [--rounds 11] [--out FILE]

A message goes to and fro between two sockets of one loop, as the broker waits for its peers: both ends begin and end to
wait for each message. The two loops take turns; `ratio` is the median of their pairs. Microseconds of CPU for each
round trip, which is two or more turns of the loop.
"""

import argparse
import asyncio
import resource
import selectors
import socket
import time
from collections.abc import Callable
from statistics import median

from gpushare.process.event_loop import polling_loop
from measurements.scale import results

IDLE = (0, 16, 128, 512, 2048)
"""Connections: the webhook keeps at most 512, a broker 2,048."""
TRIPS = 2000
Loop = Callable[[], asyncio.AbstractEventLoop]
LOOPS: dict[str, Loop] = {"epoll": lambda: asyncio.SelectorEventLoop(selectors.EpollSelector()), "poll": polling_loop}


async def trips(idle: list[socket.socket]) -> float:
    loop = asyncio.get_running_loop()
    for sock in idle:
        loop.add_reader(sock, print)
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        there.setblocking(False)
        began = time.process_time()
        for _ in range(TRIPS):
            arrives = asyncio.ensure_future(loop.sock_recv(there, 16))
            await asyncio.sleep(0)
            await loop.sock_sendall(here, b"to")
            await arrives
            back = asyncio.ensure_future(loop.sock_recv(here, 16))
            await asyncio.sleep(0)
            await loop.sock_sendall(there, b"fro")
            await back
        spent = time.process_time() - began
    for sock in idle:
        loop.remove_reader(sock)
    return spent / TRIPS * 1e6


def measured(make: Loop, idle: list[socket.socket]) -> float:
    with asyncio.Runner(loop_factory=make) as runner:
        return runner.run(trips(idle))


def beside(count: int, rounds: int) -> dict[str, float]:
    pairs = [socket.socketpair() for _ in range(count)]
    idle = [pair[0] for pair in pairs]
    try:
        taken = {name: [0.0] * rounds for name in LOOPS}
        for number in range(rounds):
            for name in LOOPS if number % 2 else reversed(LOOPS):
                taken[name][number] = measured(LOOPS[name], idle)
    finally:
        for pair in pairs:
            for sock in pair:
                sock.close()
    ratios = [poll / epoll for poll, epoll in zip(taken["poll"], taken["epoll"], strict=True)]
    return {name: round(median(figures), 1) for name, figures in taken.items()} | {"ratio": round(median(ratios), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    results.add_out(parser)
    args = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
    figures = {str(count): beside(count, args.rounds) for count in IDLE}
    results.write({"environment": results.machine(), "microsecondsByIdleConnections": figures}, args.out)


if __name__ == "__main__":
    main()
