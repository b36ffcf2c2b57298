"""The operator's environment: defaults where it is silent, a sentence where it is wrong."""

import re

import pytest

from gpushare.controller.settings import OperatorSettings, SettingsError, from_environment

NEEDED = {"GPUSHARE_NAMESPACE": "ns", "GPUSHARE_POD_NAME": "pod", "GPUSHARE_IMAGE": "image"}


def test_what_is_not_set_or_empty_has_its_default() -> None:
    settings = from_environment(NEEDED | {"GPUSHARE_MPS_CPU": ""}, simulation=False)
    assert settings == OperatorSettings(namespace="ns", pod_name="pod", image="image")


def test_what_is_set_is_taken() -> None:
    given = {
        "GPUSHARE_IMAGE_PULL_SECRETS": "one, two",
        "GPUSHARE_MPS_MEMORY": "2Gi",
        "GPUSHARE_DRAIN_SECONDS": "60",
        "GPUSHARE_CERTIFICATES": "CertManager",
        "GPUSHARE_MPS_PROTOCOL": "Auto",
        "GPUSHARE_MPS_SELINUX_OPTIONS": '{"level": "s0", "type": "spc_t"}',
    }
    settings = from_environment(NEEDED | given, simulation=True)
    assert settings.image_pull_secrets == ("one", "two")
    assert (settings.mps_memory, settings.drain_seconds, settings.certificates) == ("2Gi", 60, "CertManager")
    assert settings.mps_selinux == {"type": "spc_t", "level": "s0"}
    assert settings.mps_protocol == "Auto"
    assert settings.simulation


@pytest.mark.parametrize("name", NEEDED)
def test_what_is_missing_is_named(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is not set"):
        from_environment({key: value for key, value in NEEDED.items() if key != name}, simulation=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GPUSHARE_DRAIN_SECONDS", "1h"),
        ("GPUSHARE_CERTIFICATES", "LetsEncrypt"),
        ("GPUSHARE_MPS_PROTOCOL", "V3"),
        ("GPUSHARE_MPS_SELINUX_OPTIONS", "type=spc_t"),
        ("GPUSHARE_MPS_SELINUX_OPTIONS", '["spc_t"]'),
        ("GPUSHARE_MPS_SELINUX_OPTIONS", '{"typ": "spc_t"}'),
        ("GPUSHARE_MPS_SELINUX_OPTIONS", '{"type": 1}'),
    ],
)
def test_what_is_wrong_is_named_with_its_value(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(f"{name} is {value!r}")):
        from_environment(NEEDED | {name: value}, simulation=False)
