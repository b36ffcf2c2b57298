"""Programs that a measurement asks."""

import json
import select
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

ANSWER_SECONDS = 20.0


class Client:
    """A process that answers each line with one of JSON."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], ANSWER_SECONDS)[0]:
            self._process.kill()
        line = self._process.stdout.readline()
        if not line:
            return {"error": f"ended with {self._process.wait(10)}"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Clients:
    """Processes of one program, which answer the same question at the same moment. RuntimeError: one of them failed."""

    def __init__(self, count: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._all = [Client(command, environment) for _ in range(count)]
        try:
            self._answers(self._all)  # what each says first
        except BaseException:
            self.end()
            raise

    def ask(self, line: str, of: int | None = None) -> list[dict[str, Any]]:
        """The answers of the first `of` of them, or of all."""
        asked = self._all[:of]
        for client in asked:
            client.ask(line)
        return self._answers(asked)

    def _answers(self, asked: Sequence[Client]) -> list[dict[str, Any]]:
        answers = [client.answer() for client in asked]
        if errors := [answer["error"] for answer in answers if "error" in answer]:
            raise RuntimeError(f"{len(errors)} of {len(answers)} processes: {errors[0]}; see their standard error")
        return answers

    def __enter__(self) -> "Clients":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        for client in self._all:
            client.end()
