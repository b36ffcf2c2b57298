"""The class of a client, by its pod's annotation, its claim's size, or its share's default. Pure.

Guarantees: a share without classes grants none; where it has a queue, all its clients are Normal, whose launches are
counted. Who may be Protected is the share's to say, whichever of the three names the class. No class is replaced by
another: what a pod may not be is refused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpushare.api.client_class import ClientClass
from gpushare.api.gpushare import Classes, GpuShare
from gpushare.api.names import ANNOTATION_BESIDE_PROTECTED, ANNOTATION_CLASS
from gpushare.grant.refused import GrantRefused

_CLASS_FIELD = f"metadata.annotations[{ANNOTATION_CLASS}]"
_BESIDE_FIELD = f"metadata.annotations[{ANNOTATION_BESIDE_PROTECTED}]"
_WHOLE_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True)
class GrantedClass:
    """`client_class` None: the share has none, and no queue. `threads_beside_protected`: of best effort, percent of the
    GPU's SMs while a protected client is active; else 0.
    """

    client_class: ClientClass | None = None
    threads_beside_protected: int = 0


def granted_class(
    share: GpuShare, annotations: Mapping[str, str], namespace: str, size: str | None = None
) -> GrantedClass:
    """The class of a client of `share` whose pod is in `namespace`. `size`: of its claim. Raises GrantRefused."""
    classes = share.classes
    if classes is None:
        for field, name in ((_CLASS_FIELD, ANNOTATION_CLASS), (_BESIDE_FIELD, ANNOTATION_BESIDE_PROTECTED)):
            if name in annotations:
                without = f'needs classes, which GpuShare "{share.name}" has not (spec.clients.classes)'
                raise GrantRefused(field, annotations[name], f"{without}; remove the annotation")
        return GrantedClass(ClientClass.NORMAL if share.queue is not None else None)
    client_class = _class(share, classes, annotations, namespace, size)
    return GrantedClass(client_class, _beside_protected(share, classes, annotations, client_class))


def _class(
    share: GpuShare, classes: Classes, annotations: Mapping[str, str], namespace: str, size: str | None
) -> ClientClass:
    field, value = _named(share, classes, annotations, size)
    allowed = [item for item in classes.allowed if _may_be(item, classes, namespace)]
    advice = f"write {_one_of(allowed)}" if field == _CLASS_FIELD else f"annotate the pod: {ANNOTATION_CLASS}: "
    advice += "" if field == _CLASS_FIELD else _one_of(allowed)
    if value not in [item.value for item in ClientClass]:
        raise GrantRefused(field, value, f"is no class of clients; {advice}")
    client_class = ClientClass(value)
    if client_class not in classes.allowed:
        not_allowed = f'is not a class that GpuShare "{share.name}" allows (spec.clients.classes.allowed)'
        raise GrantRefused(field, value, f"{not_allowed}; {advice}")
    if client_class not in allowed:
        not_here = f'is not for namespace "{namespace}" (spec.clients.classes.protected.namespaces of GpuShare'
        raise GrantRefused(field, value, f'{not_here} "{share.name}"); {advice}, or have the namespace added')
    return client_class


def _named(share: GpuShare, classes: Classes, annotations: Mapping[str, str], size: str | None) -> tuple[str, str]:
    """(the field that names the class, its value)."""
    if (asked := annotations.get(ANNOTATION_CLASS)) is not None:
        return _CLASS_FIELD, asked
    chosen = next((item for item in share.spec.sizes if item.name == size), None)
    if chosen is not None and chosen.client_class is not None:
        return f'size "{chosen.name}" of GpuShare "{share.name}"', chosen.client_class.value
    return f'clients.classes.default of GpuShare "{share.name}"', classes.default.value


def _may_be(client_class: ClientClass, classes: Classes, namespace: str) -> bool:
    namespaces = classes.protected.namespaces
    return client_class is not ClientClass.PROTECTED or not namespaces or namespace in namespaces


def _beside_protected(
    share: GpuShare, classes: Classes, annotations: Mapping[str, str], client_class: ClientClass
) -> int:
    most, value = classes.best_effort.threads_beside_protected, annotations.get(ANNOTATION_BESIDE_PROTECTED)
    if client_class is not ClientClass.BEST_EFFORT:
        if value is None:
            return 0
        other = f"is for class {ClientClass.BEST_EFFORT}, and this client is {client_class}"
        raise GrantRefused(_BESIDE_FIELD, value, f"{other}; remove it, or write {ANNOTATION_CLASS}: BestEffort")
    if value is None:
        return most
    advice = f"write a whole number from 1 to {most}"
    if not _WHOLE_NUMBER.fullmatch(value) or int(value) < 1:
        raise GrantRefused(_BESIDE_FIELD, value, f"is not a whole percent of the GPU's SMs; {advice}")
    if int(value) > most:
        above = (
            f'is above the {most} percent that GpuShare "{share.name}" leaves best effort beside protected clients'
            " (spec.clients.classes.bestEffort.threadsBesideProtected)"
        )
        raise GrantRefused(_BESIDE_FIELD, value, f"{above}; {advice}")
    return int(value)


def _one_of(classes: list[ClientClass]) -> str:
    """Such as `Protected, Normal or BestEffort`."""
    if not classes:
        return "none, since it allows none here; use another share"
    *others, last = classes
    return f"{', '.join(others)} or {last}" if others else str(last)
