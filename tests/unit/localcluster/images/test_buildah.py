"""The sources of a Dockerfile decide whether an image is rebuilt."""

import pytest

from localcluster.errors import LocalClusterError
from localcluster.images.buildah import copied_sources


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("COPY operator/ /src/operator/", ["operator"], id="a directory"),
        pytest.param("COPY a.toml b.lock /src/", ["a.toml", "b.lock"], id="several files"),
        pytest.param("COPY --chown=1:1 a /b", ["a"], id="options are no sources"),
        pytest.param("COPY a \\\n  b \\\n  /c/", ["a", "b"], id="continued lines"),
        pytest.param("COPY --from=build /x /y", [], id="other stages are no input"),
        pytest.param("RUN echo COPY a b", [], id="other instructions are no input"),
        pytest.param("ADD ./a /b", ["a"], id="ADD counts too"),
    ],
)
def test_all_that_the_dockerfile_copies_is_an_input(line: str, expected: list[str]) -> None:
    assert copied_sources(line) == expected


@pytest.mark.parametrize("line", ["COPY *.py /x/", 'COPY ["a", "b"]', "COPY $SRC /x"])
def test_an_unsupported_copy_is_refused_instead_of_missed(line: str) -> None:
    with pytest.raises(LocalClusterError, match="name the paths"):
        copied_sources(line)
