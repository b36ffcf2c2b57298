"""Only missing packages are installed."""

from localcluster import packages


def test_only_packages_whose_tools_are_missing_are_installed() -> None:
    missing = packages.missing_packages(
        lambda command: command != "nft", lambda library: False, lambda module: True, lambda file: True
    )
    assert missing == ["libseccomp-dev", "nftables"]
