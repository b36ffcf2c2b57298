"""What the API server refuses to take of us, in words, with who has refused it and what mends that. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

SHOWN = 2
"""Refusals that one message tells; others are counted."""
LONGEST = 300
"""Characters of the API server's words: they may have what a tenant wrote."""


@dataclass(frozen=True, slots=True)
class RefusedWrite:
    """A write that the API server refused more than once. `what`: verb and object. `status`: HTTP's. `said`: the API
    server's words. `squatter`: of a claim template, whose name others may take: what kubectl would delete then."""

    what: str
    status: int
    said: str
    squatter: str = ""


def refused_sentence(write: RefusedWrite) -> str:
    return f"the API server refuses {write.what}: {write.said[:LONGEST]}; {remedy(write)}"


def refused_sentences(writes: Sequence[RefusedWrite]) -> str:
    more = [f"and {len(writes) - SHOWN} more writes"] if len(writes) > SHOWN else []
    return "; ".join([*(refused_sentence(write) for write in writes[:SHOWN]), *more])


def remedy(write: RefusedWrite) -> str:
    """What the administrator can do, by who has refused it."""
    said = write.said
    if write.status == HTTPStatus.CONFLICT:
        return "something else writes it all the time: its metadata.managedFields say what"
    if "exceeded quota" in said or "must specify" in said:
        return "raise that ResourceQuota, or leave this namespace out of it"
    if "ValidatingAdmissionPolicy 'gpushare-" in said:
        return "this is gpushare's own policy: upgrade the chart, so that it and the operator are of one version"
    if "ValidatingAdmissionPolicy" in said or "denied the request" in said or "failed calling webhook" in said:
        return "leave gpushare's namespace and objects out of that policy or webhook"
    if write.status in (HTTPStatus.FORBIDDEN, HTTPStatus.UNAUTHORIZED) and "cannot " in said:
        return "gpushare lacks a right: apply the chart of its own version, with its ClusterRoles"
    if write.squatter:
        return f"if another one has its name, delete that (kubectl delete {write.squatter})"
    if write.status == HTTPStatus.NOT_FOUND:
        return "its namespace or definition has gone: install the chart again"
    return "apply the chart of the operator's own version, with its definitions"
