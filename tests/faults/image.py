"""The operator's image with `faultpoints` in it: the campaign's own, never pushed anywhere."""

from pathlib import Path

from localcluster.cache import build_once, contents, key_of
from localcluster.images.buildah import Buildah, Image
from localcluster.paths import REPOSITORY

CONTEXT = "tests/faults/injected"


def with_faultpoints(cache: Path, operator: Image) -> Image:
    """The image by the name `localhost/gpushare-faults:TAG`, built if need be. Raises LocalClusterError."""
    tag = key_of(contents(REPOSITORY, [CONTEXT]), operator.image)
    name, directory = f"localhost/gpushare-faults:{tag}", cache / f"faults-{tag}"
    archive = directory / "faults.tar"
    build_once(
        directory,
        lambda aside: Buildah(cache).derive(Path(operator.archive), REPOSITORY / CONTEXT, name, aside / archive.name),
    )
    return Image(name, str(archive))
