"""The answer to a process that asks for pages, over its connection."""

import asyncio
import os
import socket
from contextlib import suppress

from gpushare.mps.attach_protocol import ProtocolError
from gpushare.mps.packets import plain, send_now
from gpushare.mps.pages.client_pages import Handed
from gpushare.mps.pages.layout import MAPPED

MAPPED_SECONDS = 2.0
"""For a process that was handed pages to say that it has mapped them. It does so within a millisecond."""


async def send_pages(sock: socket.socket, handed: Handed) -> bool:
    """Answers at once: the process may be in the midst of a launch. Tells whether it says that it has mapped pages of
    its own. OSError where it hung up; ProtocolError.
    """
    try:
        send_now(sock, handed.answer.encode(), (*handed.own, *handed.others))
    except BlockingIOError:  # it does not read what it was sent before
        return False
    finally:
        for descriptor in handed.own:
            os.close(descriptor)
    if not handed.own:
        return False
    said = b""
    with suppress(TimeoutError):
        async with asyncio.timeout(MAPPED_SECONDS):
            said = await plain(sock)
    if said not in (b"", MAPPED):
        raise ProtocolError(f"after its pages it says {said[:16]!r}")
    return said == MAPPED
