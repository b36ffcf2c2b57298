"""Names of DeviceClasses: each leads back to its share and size, and no two shares can have the same."""

import string

from hypothesis import given
from hypothesis import strategies as st

from gpushare.api import names

SHARE = st.from_regex(
    names.SHARE_NAME_PATTERN.removesuffix("$") + r"\Z", alphabet=string.ascii_lowercase + "0123456789-"
)
SIZE = st.from_regex(names.SIZE_NAME_PATTERN.removesuffix("$") + r"\Z", alphabet=string.ascii_lowercase + "0123456789-")


@given(share=SHARE, size=SIZE)
def test_a_class_leads_back_to_its_share_and_size(share: str, size: str) -> None:
    assert names.parse_device_class(names.device_class(share)) == (share, None)
    assert names.parse_device_class(names.size_class(share, size)) == (share, size)


def test_others_classes_are_none_of_ours() -> None:
    for name in (
        "gpu.nvidia.com",
        "gpushare.dev",
        ".gpushare.dev",
        "a.b.c.gpushare.dev",
        "a..gpushare.dev",
        "xgpushare.dev",
    ):
        assert names.parse_device_class(name) is None
