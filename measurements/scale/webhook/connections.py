"""Measures whether the webhook answers beside many connections: `python -m measurements.scale.webhook.connections
[--out FILE]`.

A real webhook in a process of its own, with as many file descriptors as containerd gives a container, gets connections
of one kind from another process, which opens each anew as soon as it is closed: fewer than the webhook keeps, so that
all are held, and far more. Beside that, reviews are sent one after the other, each by a new connection, from an address
of their own and from the attacker's. Times depend on what else the machine does; who is answered and the memory do not.
"""

import argparse
import asyncio
import json
import logging
import os
import resource
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from localcluster.paths import REPOSITORY
from measurements.scale import results
from measurements.scale.usage import Usage
from measurements.scale.webhook.paired import review
from measurements.scale.webhook.server import NAMES, served

DESCRIPTORS = 1024
"""containerd 2 gives a container the soft limit of systemd."""
ATTACKER, OTHER = "127.0.0.1", "127.0.0.2"
HEAD = f"POST /mutate-pods HTTP/1.1\r\nHost: {NAMES[0]}\r\n".encode()


def _client_hello() -> bytes:
    tls, sent = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        tls.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=NAMES[0]).do_handshake()
    return sent.read()


HELLO = _client_hello()
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _silent(pair: Pair) -> None:
    await pair[0].read()


async def _half_a_hello(pair: Pair) -> None:
    """The first half of the message that begins a handshake."""
    pair[1].write(HELLO[: len(HELLO) // 2])
    await pair[0].read()


async def _half_a_handshake(pair: Pair) -> None:
    """The whole of it: the webhook makes its keys and signs, and hears nothing more."""
    pair[1].write(HELLO)
    while await pair[0].read(4096):
        pass


async def _trickle(pair: Pair) -> None:
    """A body that comes byte by byte, as slowly as lets it be called alive."""
    pair[1].write(HEAD + b"Content-Length: 3145728\r\n\r\n")
    while not pair[0].at_eof():
        pair[1].write(b" ")
        await pair[1].drain()
        await asyncio.sleep(1)


async def _half_a_head(pair: Pair) -> None:
    """Sends half of a head that is as large as the server takes."""
    pair[1].write(HEAD + b"".join(b"X-%d: %b\r\n" % (number, b"x" * 4000) for number in range(30)))
    await pair[0].read()


async def _slow_body(pair: Pair) -> None:
    """Almost 3 MiB at once, and the rest never."""
    pair[1].write(HEAD + b"Content-Length: 3145728\r\n\r\n" + b" " * 3_000_000)
    await pair[0].read()


async def _idle(pair: Pair) -> None:
    pair[1].write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    await pair[0].read()


async def _no_reader(pair: Pair) -> None:
    """Asks on and on, and takes no answer."""
    body = review()
    request = HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    pair[0]._transport.pause_reading()  # type: ignore[attr-defined]  # noqa: SLF001 - asyncio offers nothing else
    for _ in range(10_000):
        pair[1].write(request)
        await pair[1].drain()


KINDS: dict[str, tuple[bool, Callable[[Pair], Awaitable[None]]]] = {
    "nobody": (False, _silent),
    "no TLS handshake": (False, _silent),
    "half a ClientHello": (False, _half_a_hello),
    "half a handshake": (False, _half_a_handshake),
    "TLS and no request": (True, _silent),
    "half a head": (True, _half_a_head),
    "a body that never ends": (True, _slow_body),
    "a body byte by byte": (True, _trickle),
    "idle after a request": (True, _idle),
    "no answer is read": (True, _no_reader),
}
"""Kinds of attack by name: whether TLS is spoken, and what is done with a connection."""


async def attack(kind: str, port: int, count: int, opened: list[int]) -> None:
    """Attacks until it is cancelled."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    speaks, act = KINDS[kind]

    async def connection() -> None:
        while True:
            try:
                pair = await asyncio.open_connection(
                    ATTACKER, port, ssl=tls if speaks else None, local_addr=(ATTACKER, 0)
                )
                opened[0] += 1
            except OSError:
                await asyncio.sleep(0.1)
                continue
            try:
                await act(pair)
            except OSError:
                pass
            finally:
                pair[1].transport.abort()
            await asyncio.sleep(0)

    await asyncio.gather(*(connection() for _ in range(count)))


async def ask(port: int, tls: ssl.SSLContext, address: str) -> float | None:
    """Seconds from the connection to the answer of one review; None: there was no answer in 10 s."""
    body = review()
    began = time.monotonic()
    try:
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection(
                ATTACKER, port, ssl=tls, server_hostname=NAMES[0], local_addr=(address, 0)
            )
            writer.write(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            head = await reader.readuntil(b"\r\n\r\n")
    except (OSError, asyncio.IncompleteReadError):
        return None
    writer.transport.abort()
    return time.monotonic() - began if head.startswith(b"HTTP/1.1 200") else None


async def asked(port: int, tls: ssl.SSLContext, seconds: float) -> dict[str, dict[str, float | int | None]]:
    """Reviews by the address that they came from."""
    times_by_address: dict[str, list[float | None]] = {OTHER: [], ATTACKER: []}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for address, times in times_by_address.items():
            times.append(await ask(port, tls, address))
        await asyncio.sleep(0.05)
    names = {OTHER: "anotherAddress", ATTACKER: "attackersAddress"}
    return {names[address]: _figures(times) for address, times in times_by_address.items()}


def _figures(times: list[float | None]) -> dict[str, float | int | None]:
    answered = sorted(seconds for seconds in times if seconds is not None)
    return {
        "reviews": len(times),
        "unanswered": len(times) - len(answered),
        "p50Milliseconds": round(answered[len(answered) // 2] * 1000, 1) if answered else None,
        "longestMilliseconds": round(answered[-1] * 1000, 1) if answered else None,
    }


def measure(kind: str, count: int, seconds: float) -> dict[str, object]:
    with served(REPOSITORY, NAMES, DESCRIPTORS) as server, ExitStack() as attacks:
        _until_it_answers(server.port, server.tls)
        before = Usage.of(server.pid)
        attacker = None
        if kind != "nobody":
            attacker = attacks.enter_context(attacking(kind, server.port, count))
            time.sleep(seconds / 2)
        answers = asyncio.run(asked(server.port, server.tls, seconds))
        spent = Usage.of(server.pid).cpu - before.cpu
        descriptors = len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
        opened = 0
        if attacker:
            attacker.terminate()
            opened = int(attacker.communicate()[0] or 0)
        return {
            **answers,
            "opened": opened,
            "load": results.load(),
            "serverDescriptors": descriptors,
            "serverCpuSeconds": round(spent, 1),
            "memoryMiBBefore": round(before.peak, 1),
            "memoryMiBPeak": round(Usage.of(server.pid).peak, 1),
        }


@contextmanager
def attacking(kind: str, port: int, count: int) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "measurements.scale.webhook.connections", "--attack", kind, "--port", str(port)]
    environment = os.environ | {"PYTHONPATH": f"{REPOSITORY}/operator:{REPOSITORY}/workload:{REPOSITORY}"}
    attacker = subprocess.Popen(
        [*command, "--connections", str(count)], env=environment, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    try:
        yield attacker
    finally:
        attacker.kill()
        attacker.wait()


def _until_it_answers(port: int, tls: ssl.SSLContext) -> None:
    for _ in range(200):
        if asyncio.run(ask(port, tls, OTHER)):
            return
        time.sleep(0.1)
    raise TimeoutError("the webhook did not begin to answer")


async def _attack_until_terminated(kind: str, port: int, count: int) -> None:
    opened = [0]
    task = asyncio.create_task(attack(kind, port, count, opened))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await asyncio.gather(task, return_exceptions=True)
    sys.stdout.write(f"{opened[0]}\n")
    sys.stdout.flush()
    os._exit(0)  # thousands of connections are closed faster by the kernel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, action="append", help="default: 400 and 5000")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--kind", choices=KINDS, action="append", help="one of the kinds; default: all")
    results.add_out(parser)
    parser.add_argument("--attack", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.attack:
        logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of each write to a closed connection
        [count] = args.connections
        resource.setrlimit(resource.RLIMIT_NOFILE, (count + 1000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        asyncio.run(_attack_until_terminated(args.attack, args.port, count))
        return
    kinds: dict[str, dict[str, object]] = {}
    for kind in args.kind or KINDS:
        for count in (args.connections or [400, 5000]) if kind != "nobody" else [0]:
            kinds.setdefault(kind, {})[str(count)] = figures = measure(kind, count, args.seconds)
            print(kind, count, json.dumps(figures), flush=True)
    result = {
        "seconds": args.seconds,
        "descriptors": DESCRIPTORS,
        "environment": results.machine(),
        "kinds": kinds,
    }
    results.write(result, args.out)


if __name__ == "__main__":
    main()
