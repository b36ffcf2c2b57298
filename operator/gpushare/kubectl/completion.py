"""Completion of `kubectl gpushare …` in every shell for which kubectl's own completion is set up.

kubectl runs the program `kubectl_complete-gpushare` of the PATH with the words so far, the last of which may be empty,
and reads suggestions, a line each, and at the end a directive, as cobra's programs print them. Suggestions come from
the parser, and names from the cluster; where that does not answer there are none, and nothing is said.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

from gpushare.kube.resources import GPU_NODES, GPU_SHARES, NAMESPACES, PODS, KubeError, Resource
from gpushare.kubectl import options
from gpushare.kubectl.cluster import Cluster
from gpushare.kubectl.failures import UnreachableError

NO_FILES = ":4"
FILES = ":0"
"""cobra's directives: what the shell may suggest besides."""
ParserFor = Callable[[Sequence[str]], tuple[argparse.ArgumentParser, ModuleType | None]]
_OF_OPTIONS = {
    "namespace": NAMESPACES,
    "system_namespace": NAMESPACES,
    "share": GPU_SHARES,
}
_FILES = ("kubeconfig", "filename", "beside")
"""Options whose values are files."""
_KINDS = ("share", "node", "pod")


def complete(parser_for: ParserFor, words: Sequence[str]) -> int:
    *before, last = words or [""]
    words_offered, directive = suggestions(parser_for, before, last)
    for word in sorted(set(words_offered)):
        if word.startswith(last):
            print(word)
    print(directive)
    return 0


def suggestions(parser_for: ParserFor, before: Sequence[str], last: str) -> tuple[Sequence[str], str]:
    """(suggestions, directive) for the word `last` after the words `before`."""
    root, module = parser_for([*before, ""])
    commands = next(action for action in root._actions if isinstance(action, argparse._SubParsersAction))
    if module is None:
        return (_flags(root) if last.startswith("-") else list(commands.choices)), NO_FILES
    command = next(word for word in before if word in commands.choices)
    parser: argparse.ArgumentParser = commands.choices[command]
    value_of = _option(parser, before[-1])
    if value_of is not None:
        return _values(value_of, before)
    if last.startswith("-"):
        return _flags(parser), NO_FILES
    return _positional(command, [word for word in _positionals(parser, before) if word != command], before)


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    return [text for action in parser._actions for text in action.option_strings if text.startswith("--")]


def _option(parser: argparse.ArgumentParser, word: str) -> argparse.Action | None:
    """The option that `word` names, if a value has to follow."""
    return next((action for action in parser._actions if word in action.option_strings and action.nargs is None), None)


def _positionals(parser: argparse.ArgumentParser, before: Sequence[str]) -> Iterator[str]:
    words = iter(before)
    for word in words:
        if not word.startswith("-"):
            yield word
        elif _option(parser, word) is not None:
            next(words, None)


def _values(option: argparse.Action, before: Sequence[str]) -> tuple[Sequence[str], str]:
    if option.choices is not None:
        return list(option.choices), NO_FILES
    if option.dest in _FILES:
        return [], FILES
    if option.dest == "context":
        return _asked(before, lambda cluster: cluster.run("config", "get-contexts", "--output=name").split()), NO_FILES
    resource = _OF_OPTIONS.get(option.dest)
    return (_names(before, resource) if resource else []), NO_FILES


def _positional(command: str, words: Sequence[str], before: Sequence[str]) -> tuple[Sequence[str], str]:
    """`words`: positional ones that are there already."""
    match command, words:
        case "plan", []:
            return [], FILES
        case "check", []:
            return _names(before, GPU_NODES), NO_FILES
        case "why", []:
            return _pods(before), NO_FILES
        case "describe", []:
            return _KINDS, NO_FILES
        case "describe", ["share"]:
            return _names(before, GPU_SHARES), NO_FILES
        case "describe", ["node"]:
            return _names(before, GPU_NODES), NO_FILES
        case "describe", ["pod"]:
            return _pods(before), NO_FILES
    return [], NO_FILES


def _pods(before: Sequence[str]) -> list[str]:
    def ask(cluster: Cluster) -> list[str]:
        namespace = _value(before, "-n", "--namespace") or cluster.namespace().result()
        return [pod["metadata"]["name"] for pod in cluster.items(PODS, namespace).result()]

    return _asked(before, ask)


def _names(before: Sequence[str], resource: Resource) -> list[str]:
    return _asked(before, lambda cluster: [listed["metadata"]["name"] for listed in cluster.items(resource).result()])


def _asked(before: Sequence[str], question: Callable[[Cluster], list[str]]) -> list[str]:
    flags = [f"--{name}={value}" for name in options.KUBECTL if (value := _value(before, f"--{name}"))]
    cluster = Cluster(flags)
    try:
        return question(cluster)
    except (KubeError, UnreachableError):
        return []
    finally:
        cluster.close()


def _value(before: Sequence[str], *option: str) -> str:
    """What follows the option among the words, behind it or behind `=`."""
    for at, word in enumerate(before):
        if word in option and at + 1 < len(before):
            return before[at + 1]
        if any(word.startswith(f"{name}=") for name in option):
            return word.partition("=")[2]
    return ""
