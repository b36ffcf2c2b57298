"""An image's software bill of materials as CycloneDX 1.6 JSON.

Guarantees: the same image gives the same document, byte by byte; every Debian package and every Python distribution of
the image is a component with a package URL, each front library one with its checksum. What made the image and is not in
it, such as the compiler, has the scope `excluded`. Not covered: what a Python wheel has linked into itself, such as
OpenSSL in `cryptography`.
"""

import uuid
from collections.abc import Iterable
from datetime import UTC, datetime

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from release.packages import Contents, Package


def document(
    name: str, version: str, digest: str, contents: Contents, moment: int, tools: Iterable[Package] = ()
) -> str:
    """The document as JSON text.

    `digest`: of the image's manifest, sha256:…; `moment`: Unix seconds, of the source; `tools`: what the image was made
    with.
    """
    image = Component(
        name=name,
        version=version,
        type=ComponentType.CONTAINER,
        bom_ref=digest,
        purl=PackageURL("oci", name=name, version=digest),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest.removeprefix("sha256:"))],
    )
    bom = Bom(
        components=[
            *(_component(package, contents) for package in contents.packages),
            *(_component(tool, contents, ComponentScope.EXCLUDED) for tool in tools),
        ],
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, digest),
    )
    bom.metadata.component = image
    bom.metadata.timestamp = datetime.fromtimestamp(moment, UTC)
    in_image = [component for component in bom.components if component.scope is not ComponentScope.EXCLUDED]
    bom.register_dependency(image, in_image)
    text: str = JsonV1Dot6(bom).output_as_string(indent=2)
    return text + "\n"


def _component(package: Package, contents: Contents, scope: ComponentScope = ComponentScope.REQUIRED) -> Component:
    url = _url(package, contents)
    website = [ExternalReference(type=ExternalReferenceType.WEBSITE, url=XsUri(package.homepage))]
    return Component(
        name=package.name,
        version=package.version or None,
        type=ComponentType.FILE if package.sha256 else ComponentType.LIBRARY,
        scope=scope,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=package.sha256)] if package.sha256 else [],
        bom_ref=f"{scope.value}:{url}" if scope is ComponentScope.EXCLUDED else str(url),
        purl=url,
        licenses=[LicenseFactory().make_from_string(package.licence)] if package.licence else [],
        external_references=website if package.homepage else [],
    )


def _url(package: Package, contents: Contents) -> PackageURL:
    if package.kind == "generic":
        return PackageURL("generic", "gpushare", package.name, qualifiers={"checksum": f"sha256:{package.sha256}"})
    if package.kind == "pypi":
        return PackageURL("pypi", name=package.name, version=package.version)
    qualifiers = {"arch": package.architecture, "distro": f"{contents.distribution}-{contents.release}"}
    return PackageURL("deb", contents.distribution, package.name, package.version, qualifiers)
