"""The probes: each path is its own check, and an answer carries the problem."""

import aiohttp

from gpushare.http import probes


async def get(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def test_a_part_may_be_alive_and_not_ready(free_port: int) -> None:
    problem: str | None = "waiting for the NVIDIA driver"
    async with probes.serve(free_port, {"/healthz": probes.well, "/readyz": lambda: problem}):
        assert await get(free_port, "/healthz") == (200, "ok\n")
        assert await get(free_port, "/readyz") == (503, "waiting for the NVIDIA driver\n")
        problem = None
        assert await get(free_port, "/readyz?verbose") == (200, "ok\n")


async def test_other_paths_are_not_found(free_port: int) -> None:
    async with probes.serve(free_port, {"/healthz": probes.well}):
        assert (await get(free_port, "/readyz"))[0] == 404


async def test_a_probe_is_a_get_or_a_head_and_does_not_say_what_serves_it(free_port: int) -> None:
    async with probes.serve(free_port, {"/healthz": probes.well}), aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{free_port}/healthz"
        async with session.head(url) as answer:
            assert (answer.status, await answer.text(), answer.headers["Content-Length"]) == (200, "", "3")
            assert "Server" not in answer.headers
        async with session.post(url, data="a") as answer:
            assert (answer.status, answer.headers["Allow"]) == (405, "GET,HEAD")
