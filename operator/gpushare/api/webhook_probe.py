"""A GpuShare that the schema takes and the webhook refuses: a dry run that creates it shows whether that is called."""

from typing import Any

from gpushare.api import names

_REFUSED_PRODUCT = " "
WEBHOOK_PROBE: dict[str, Any] = {
    "apiVersion": names.API_VERSION,
    "kind": "GpuShare",
    "metadata": {"name": "webhook-probe"},
    "spec": {"gpus": {"products": [_REFUSED_PRODUCT]}, "clients": {"perGpu": 1, "memory": {"default": "1Gi"}}},
}
WEBHOOK_REFUSAL = "spec.gpus.products"
"""Is in the webhook's refusal of WEBHOOK_PROBE."""
