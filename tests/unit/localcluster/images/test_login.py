"""A registry that wants a login: told before the build where there is none, and its password stays in its file."""

import os
import shutil
from pathlib import Path

import pytest

from localcluster.errors import LocalClusterError
from localcluster.images import names
from localcluster.images.buildah import Image
from localcluster.images.publish import publish, require_login
from tests.unit.localcluster.images import registry

needs_buildah = pytest.mark.skipif(
    shutil.which("buildah") is None or os.geteuid() != 0, reason="needs buildah and root, as image builds do"
)


def buildah(folder: Path, then: str) -> dict[str, str]:
    """An environment with a stand-in for buildah, which notes its arguments down. `then`: what the shell does next."""
    program = folder / "buildah"
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\n{then}\n')
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_a_missing_login_is_told_before_anything_is_built(tmp_path: Path) -> None:
    with registry.running() as server:
        with pytest.raises(LocalClusterError, match=f"wants a login.*buildah login {server.host}.*REGISTRY_AUTH_FILE"):
            require_login(f"{server.host}/team", plain_http=True, environment=buildah(tmp_path, "exit 1"))
        require_login(f"{server.host}/team", plain_http=True, environment=buildah(tmp_path, "exit 0"))
        assert (tmp_path / "asked").read_text() == f"login --get-login {server.host}/team\n" * 2


def test_who_wants_no_login_or_does_not_answer_is_buildahs_matter(tmp_path: Path) -> None:
    with registry.running(wants_login=False) as server:
        require_login(server.host, plain_http=True, environment=buildah(tmp_path, "exit 1"))
    require_login(server.host, plain_http=True, environment=buildah(tmp_path, "exit 1"))
    assert not (tmp_path / "asked").exists()


def test_a_file_of_logins_that_is_not_there_is_named() -> None:
    with pytest.raises(LocalClusterError, match="REGISTRY_AUTH_FILE='/nowhere' is no file"):
        require_login("127.0.0.1:1", environment={"REGISTRY_AUTH_FILE": "/nowhere"})


@needs_buildah
@pytest.mark.parametrize("where", ["docker", "REGISTRY_AUTH_FILE"])
def test_a_push_uses_the_login_of_docker_or_the_file_and_tells_no_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], where: str
) -> None:
    archive, cache = tmp_path / "image.tar", tmp_path / "cache"
    registry.image(archive)
    monkeypatch.setenv("PATH", buildah(tmp_path, f'exec {shutil.which("buildah")} "$@"')["PATH"])
    with registry.running() as server:
        _log_in(tmp_path, monkeypatch, where, registry.login(server.host))
        require_login(f"{server.host}/team", plain_http=True)
        built = {"operator": Image("localhost/x", str(archive))}
        published = publish(built, f"{server.host}/team", cache, plain_http=True)
        ((tagged, manifest),) = server.manifests.items()
        assert tagged == f"team/gpushare/operator:{names.version()}"
        assert published["operator"].digest == registry.digest(manifest)
    asked, log = (tmp_path / "asked").read_text(), (cache / "logs" / "images.log").read_text()
    assert "push" in asked
    for secret in (registry.PASSWORD, registry.basic(registry.PASSWORD)):
        assert secret not in asked + log + "".join(capfd.readouterr())


@needs_buildah
def test_a_wrong_password_is_the_registrys_refusal_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "image.tar"
    registry.image(archive)
    with registry.running() as server:
        _log_in(tmp_path, monkeypatch, "docker", registry.login(server.host, "wrong-word"))
        with pytest.raises(LocalClusterError) as refused:
            publish({"operator": Image("localhost/x", str(archive))}, server.host, tmp_path / "c", plain_http=True)
        assert f"the registry refuses the login for {server.host}: run `buildah login {server.host}`" in str(
            refused.value
        )
        assert "wrong-word" not in str(refused.value)
        assert server.manifests == {}


def _log_in(folder: Path, monkeypatch: pytest.MonkeyPatch, where: str, login: str) -> None:
    """Nobody's login but this one."""
    home = folder / "home"
    file = home / ".docker" / "config.json" if where == "docker" else folder / "auth.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(login)
    home.mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "run"))
    monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)
    if where != "docker":
        monkeypatch.setenv(where, str(file))
