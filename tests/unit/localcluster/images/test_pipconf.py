"""pip's settings of the machine reach an image build."""

from localcluster.images import pipconf

LISTING = """:env:.index-url='https://user@mirror/simple'
:env:.find-links='/opt/wheels'
global.index-url='https://other/simple'
global.cert='/etc/ssl/certs/ca-certificates.crt'
global.cache-dir='/root/.cache/pip'
freeze.timeout='10'
"""


def test_pip_settings_of_the_environment_outrank_files_as_in_pip() -> None:
    assert pipconf.settings(LISTING)["index-url"] == "https://user@mirror/simple"


def test_pip_settings_that_only_fit_the_machine_are_left_behind() -> None:
    assert set(pipconf.settings(LISTING)) == {"index-url", "find-links", "cert"}


def test_local_paths_of_pip_settings_are_mounted_except_certificates() -> None:
    assert [str(path) for path in pipconf.named_paths(pipconf.settings(LISTING))] == ["/opt/wheels"]
