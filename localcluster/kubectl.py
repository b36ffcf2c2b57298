"""kubectl and helm as functions, so that demo and cluster tests do the same as a user.

Each call has a time limit. Objects go in and come out as JSON; errors quote the program.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from localcluster.errors import LocalClusterError

Object = dict[str, Any]


class CommandError(LocalClusterError):
    """kubectl or helm failed. `text`: its standard error."""

    def __init__(self, command: Sequence[str], text: str) -> None:
        super().__init__(f"{' '.join(command[:4])} …: {text}")
        self.text = text


@dataclass(frozen=True, slots=True)
class Kubectl:
    """One cluster, reached by the environment of a process (KUBECONFIG, PATH)."""

    environment: Mapping[str, str]
    namespace: str | None = None
    extra: tuple[str, ...] = field(default=())
    """Arguments for every call, such as --as=…"""

    def within(self, namespace: str) -> "Kubectl":
        return replace(self, namespace=namespace)

    def acting_as(self, *arguments: str) -> "Kubectl":
        return replace(self, extra=arguments)

    def __call__(self, *arguments: str, stdin: str | None = None, seconds: float = 60) -> str:
        """Standard output. Raises CommandError if kubectl fails or takes longer than `seconds`."""
        scope = ["--namespace", self.namespace] if self.namespace else []
        return run(["kubectl", *scope, *self.extra, *arguments], self.environment, stdin, seconds)

    def get(self, *arguments: str) -> Object:
        result: Object = json.loads(self("get", *arguments, "-o", "json"))
        return result

    def items(self, *arguments: str) -> list[Object]:
        listed: list[Object] = self.get(*arguments)["items"]
        return listed

    def find(self, *arguments: str) -> Object | None:
        """The object, or None if there is none."""
        text = self("get", *arguments, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def logs(self, pod: str) -> str:
        return self("logs", pod)

    def apply(self, *objects: Object) -> str:
        return self("apply", "-f", "-", stdin=as_list(objects))

    def create(self, *objects: Object) -> str:
        return self("create", "-f", "-", stdin=as_list(objects))

    def delete(self, *arguments: str, wait: bool = True, seconds: float = 120) -> str:
        return self("delete", *arguments, f"--wait={str(wait).lower()}", "--ignore-not-found", seconds=seconds)


def as_list(objects: Sequence[Object]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


def run(command: Sequence[str], environment: Mapping[str, str], stdin: str | None = None, seconds: float = 60) -> str:
    try:
        done = subprocess.run(
            command, env=dict(environment), input=stdin or "", capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired as error:
        raise CommandError(command, f"no answer within {seconds} s") from error
    except FileNotFoundError as error:
        raise CommandError(command, f"{command[0]} is not installed or not on PATH") from error
    if done.returncode != 0:
        raise CommandError(command, done.stderr.strip() or done.stdout.strip())
    return done.stdout
