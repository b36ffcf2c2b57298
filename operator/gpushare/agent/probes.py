"""/healthz and /readyz over plain HTTP/1.0: one answer per connection, chosen by the request's path alone."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

REQUEST_SECONDS = 5.0

Check = Callable[[], str | None]
"""None when all is well, otherwise what is not, as a sentence."""


async def serve(port: int, checks: dict[str, Check]) -> asyncio.Server:
    """`checks` by path. 200 or 503 with the sentence; 404 for other paths."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(REQUEST_SECONDS):
                # To its end: closing a connection with unread bytes resets it, and the answer may be lost.
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(_response(request.decode("latin-1"), checks))
                await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, port=port, limit=4096)


def _response(request_line: str, checks: dict[str, Check]) -> bytes:
    words = request_line.split()
    check = checks.get(words[1].partition("?")[0]) if len(words) > 1 else None
    if check is None:
        status, text = "404 Not Found", "not found"
    else:
        problem = check()
        status, text = ("200 OK", "ok") if problem is None else ("503 Service Unavailable", problem)
    body = f"{text}\n".encode()
    head = f"HTTP/1.0 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
