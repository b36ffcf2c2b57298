"""The event loop that every part runs in."""

import ast
import asyncio
import subprocess
import sys
from pathlib import Path

import gpushare
from gpushare.process import event_loop

OTHERS = {"run", "Runner", "new_event_loop", "DefaultSelector", "EpollSelector", "epoll", "SelectorEventLoop"}
"""Names of asyncio, selectors and select by which a loop or a selector is made."""
PROGRAM = """
import asyncio, os, socket
from gpushare.process import event_loop
async def main():
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    async with server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        await (await asyncio.create_subprocess_exec("true")).wait()
        await asyncio.to_thread(print, "opened")
        descriptors = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        print(*sorted(os.readlink(path) for path in descriptors if os.path.lexists(path)), sep="\\n")
        writer.close()
event_loop.run(main())
"""
"""A server, a client, a child and a thread: what parts wait for."""


def test_a_loop_opens_neither_epoll_nor_inotify() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    opened = done.stdout.splitlines()
    assert opened[0] == "opened"
    assert any(link.startswith("socket:") for link in opened)
    assert [link for link in opened if "eventpoll" in link or "inotify" in link] == []


def test_no_part_makes_another_loop() -> None:
    calls = []
    for file in Path(gpushare.__file__).parent.rglob("*.py"):
        if file.name == "event_loop.py" or "simulation" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Attribute(value=ast.Name(id="asyncio" | "selectors" | "select"), attr=name) if name in OTHERS:
                    calls.append(f"{file}:{node.lineno}: {name}")
    assert calls == [], "gpushare.process.event_loop makes them"


def test_what_the_work_returns_is_returned() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert event_loop.run(work()) == 7
