"""Requests in the name of a part of ours, which RBAC lets pass, and what a policy says to them.

Everything is a dry run on the server: admission decides, nothing is stored.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from localcluster.kubectl import CommandError, Kubectl, Object
from localcluster.stack import NAMESPACE
from tests.cluster.harness import Harness

AGENT, OPERATOR = "gpushare-agent", "gpushare-operator"
Change = Callable[[Object], Any]


def acting_as(harness: Harness, account: str, node: str | None = None, pod: str | None = None) -> Kubectl:
    """Acts with a token like the one the kubelet asks for: bound to `node` and `pod`."""
    bound = {"node-name": node, "pod-name": pod}
    extra = [f"--as-user-extra=authentication.kubernetes.io/{key}={value}" for key, value in bound.items() if value]
    return harness.kubectl.acting_as(f"--as=system:serviceaccount:{NAMESPACE}:{account}", *extra)


def refusal(kubectl: Kubectl, verb: str, *arguments: str, body: Object | None = None) -> str:
    """What a policy says to this request, which it has to refuse."""
    with pytest.raises(CommandError) as refused:
        kubectl(verb, *arguments, "--dry-run=server", stdin=json.dumps(body) if body else None)
    assert "ValidatingAdmissionPolicy" in refused.value.text, "refused by something else: " + refused.value.text
    return refused.value.text
