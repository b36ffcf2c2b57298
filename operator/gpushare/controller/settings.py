"""The operator's settings, which the chart sets in its environment."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

CERTIFICATE_MODES = ("SelfSigned", "CertManager")
PROTOCOLS = ("V2", "Auto")
SELINUX_KEYS = ("user", "role", "type", "level")


class SettingsError(Exception):
    """A setting is missing or wrong; the text names it, the refused value and what to do."""


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """`pod_ip`: where the liveness endpoint listens, IPv4 or IPv6.

    `drain_seconds`: the MPS pods' grace period, which is how long a deleted one waits for its clients. `driver_root`:
    where nodes have the driver; it reaches MPS pods through the agent, and another one needs new pods. `mps_cpu`: the
    MPS pods' request; `mps_cpu_limit`: empty for none. `mps_selinux`: their seLinuxOptions; empty for the runtime's.
    `mps_protocol`: Auto for MPS v3 where the driver has it.
    """

    namespace: str
    pod_name: str
    image: str
    pod_ip: str = "0.0.0.0"  # noqa: S104 - outside of a pod: all addresses
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    mps_cpu: str = "250m"
    mps_cpu_limit: str = ""
    mps_memory: str = "1Gi"
    mps_protocol: Literal["V2", "Auto"] = "V2"
    mps_service_account: str = "gpushare-mps"
    mps_selinux: Mapping[str, str] = field(default_factory=dict)
    drain_seconds: int = 3600
    driver_root: str = "/"
    simulation: bool = False
    certificates: Literal["SelfSigned", "CertManager"] = "SelfSigned"
    webhook_service: str = "gpushare-webhook"
    webhook_configuration: str = "gpushare-webhook"
    webhook_secret: str = "gpushare-webhook-tls"  # noqa: S105 - the Secret's name
    authority_secret: str = "gpushare-webhook-ca"  # noqa: S105 - the Secret's name


OPTIONAL = {
    "pod_ip": "GPUSHARE_POD_IP",
    "image_pull_policy": "GPUSHARE_IMAGE_PULL_POLICY",
    "mps_cpu": "GPUSHARE_MPS_CPU",
    "mps_cpu_limit": "GPUSHARE_MPS_CPU_LIMIT",
    "mps_memory": "GPUSHARE_MPS_MEMORY",
    "driver_root": "GPUSHARE_DRIVER_ROOT",
    "mps_service_account": "GPUSHARE_MPS_SERVICE_ACCOUNT",
    "webhook_service": "GPUSHARE_WEBHOOK_SERVICE",
    "webhook_configuration": "GPUSHARE_WEBHOOK_CONFIGURATION",
    "webhook_secret": "GPUSHARE_WEBHOOK_SECRET",
    "authority_secret": "GPUSHARE_AUTHORITY_SECRET",
}
"""Settings that are text and have a default; an empty variable counts as unset."""


def from_environment(environ: Mapping[str, str], *, simulation: bool) -> OperatorSettings:
    """Raises SettingsError."""
    settings = OperatorSettings(
        namespace=_required(environ, "GPUSHARE_NAMESPACE"),
        pod_name=_required(environ, "GPUSHARE_POD_NAME"),
        image=_required(environ, "GPUSHARE_IMAGE"),
        image_pull_secrets=_listed(environ.get("GPUSHARE_IMAGE_PULL_SECRETS", "")),
        mps_selinux=_selinux_options(environ, "GPUSHARE_MPS_SELINUX_OPTIONS"),
        mps_protocol=cast(Literal["V2", "Auto"], _one_of(environ, "GPUSHARE_MPS_PROTOCOL", PROTOCOLS)),
        drain_seconds=_seconds(environ, "GPUSHARE_DRAIN_SECONDS", 3600),
        simulation=simulation,
        certificates=cast(
            Literal["SelfSigned", "CertManager"], _one_of(environ, "GPUSHARE_CERTIFICATES", CERTIFICATE_MODES)
        ),
    )
    given: dict[str, Any] = {field: environ[name] for field, name in OPTIONAL.items() if environ.get(name)}
    return replace(settings, **given)


def _required(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise SettingsError(f"{name} is not set: the chart sets it in the operator's Deployment")
    return value


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _seconds(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name) or str(default)
    if not text.isdigit():
        raise SettingsError(f"{name} is {text!r}: give whole seconds, such as {default}")
    return int(text)


def _selinux_options(environ: Mapping[str, str], name: str) -> Mapping[str, str]:
    text = environ.get(name) or "{}"
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict) or not all(
        key in SELINUX_KEYS and isinstance(options[key], str) for key in options
    ):
        raise SettingsError(f'{name} is {text!r}: give JSON such as {{"type": "spc_t"}}, of {", ".join(SELINUX_KEYS)}')
    return options


def _one_of(environ: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    """The first of them where nothing is set."""
    chosen = environ.get(name) or choices[0]
    if chosen not in choices:
        raise SettingsError(f"{name} is {chosen!r}: it is one of {', '.join(choices)}")
    return chosen
