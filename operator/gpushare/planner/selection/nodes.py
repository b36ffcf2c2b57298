"""Which nodes a selector matches, and why one matches nothing. Pure.

Guarantee: a selector is compared with the nodes that have one of its labels, not with all nodes, so that many shares
with nodes of their own cost as much as one share with all of them.
"""

from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher

from gpushare.api.meta import LabelSelector, Requirement, SelectorOperator
from gpushare.messages.wording import count_of, first_names
from gpushare.planner.model import NodeView

SHOWN = 3
"""So many of the nearest to what a selector names are shown."""


class NodeIndex:
    """Nodes by their labels. An index of one label is made when a selector asks for it."""

    def __init__(self, nodes: Iterable[NodeView]) -> None:
        self.nodes = tuple(sorted(nodes, key=lambda node: node.name))
        self._by_label: dict[str, dict[str, list[NodeView]]] = {}

    def having(self, label: str) -> Mapping[str, list[NodeView]]:
        """The nodes with this label, by its value."""
        by_value = self._by_label.get(label)
        if by_value is None:
            by_value = self._by_label[label] = {}
            for node in self.nodes:
                value = node.labels.get(label)
                if value is not None:
                    by_value.setdefault(value, []).append(node)
        return by_value

    def matching(self, selector: LabelSelector) -> tuple[NodeView, ...]:
        """The matching nodes by name."""
        few = min(self._narrowed(selector), key=len, default=self.nodes)
        return tuple(node for node in few if selector.matches(node.labels))

    def _narrowed(self, selector: LabelSelector) -> Iterable[list[NodeView]]:
        """The nodes of each requirement that names values: those that meet it, by name."""
        for label, value in selector.match_labels.items():
            yield self.having(label).get(value, [])
        for part in selector.match_expressions:
            if part.operator is SelectorOperator.IN:
                by_value = self.having(part.key)
                nodes = [node for value in set(part.values) for node in by_value.get(value, [])]
                yield sorted(nodes, key=lambda node: node.name)


def no_product(products: Iterable[str], counts: Mapping[str, int]) -> str:
    """Why `products` match none of the selected nodes' GPUs. `counts`: how many there are of each product."""
    missing = [f'"{name}"' for name in products]
    present = _nearest(products, counts, '{count} "{name}"')
    return f"spec.gpus.products names {first_names(missing, SHOWN)}, but the GPUs of the selected nodes are {present}"


def no_node(selector: LabelSelector, reporting: NodeIndex) -> str:
    """Why `selector` matches no node: the first requirement that none of `reporting`, the nodes with GPUs, meets."""
    if not reporting.nodes:
        return "no agent reports a GPU on any node: look at the DaemonSet gpushare-agent and its nodeSelector"
    parts = [
        *(
            Requirement(key=key, operator=SelectorOperator.IN, values=[value])
            for key, value in selector.match_labels.items()
        ),
        *selector.match_expressions,
    ]
    whole = f"spec.nodeSelector matches none of {count_of(len(reporting.nodes), 'node')} with GPUs"
    for part in parts:
        alone = LabelSelector(match_expressions=[part])
        if not reporting.matching(alone):
            return f"{whole}: {_requirement(part)}, and there {_values(part, reporting)}"
    return f"{whole}: some meet one of its requirements, none meets all of them"


def _requirement(part: Requirement) -> str:
    values = f" {', '.join(part.values[:SHOWN])}" if part.values else ""
    return f"it wants the label {part.key} {part.operator}{values}"


def _values(part: Requirement, reporting: NodeIndex) -> str:
    counts = {value: len(nodes) for value, nodes in reporting.having(part.key).items()}
    return f"it is {_nearest(part.values, counts, '{name} ({count})')}" if counts else "no node has it"


def _nearest(wanted: Iterable[str], counts: Mapping[str, int], form: str) -> str:
    """The SHOWN of `counts` that look most like one of `wanted`, each by `form`, and how many others there are."""
    names = [text[:64] for text in wanted][:16]

    def likeness(name: str) -> float:
        return max(
            (SequenceMatcher(None, name[:64].lower(), wanted_name.lower()).ratio() for wanted_name in names),
            default=0.0,
        )

    # However many products nodes report, few are compared: the most frequent.
    frequent = sorted(counts, key=lambda name: (-counts[name], name))[:64]
    shown = sorted(frequent, key=lambda name: (-likeness(name), name))[:SHOWN]
    listed = ", ".join(form.format(count=counts[name], name=name) for name in shown)
    return listed + (f" and {len(counts) - SHOWN} others" if len(counts) > SHOWN else "")
