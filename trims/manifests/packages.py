"""Files inside installed Python packages, as a manifest names them."""

from typing import Annotated, Any

from msgspec import Struct

from trims.manifests.fields import about, check_inside, matching, parse

PACKAGE_SCHEMA = {"$ref": "#/$defs/PackageFile"}


class PackageFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file inside an installed Python package."""

    name: Annotated[str, matching(r"^[A-Za-z_]\w*(\.\w+)*\Z", "an import name", "Import name of the package.")]
    path: Annotated[str, about("File inside it.")]

    def __post_init__(self) -> None:
        check_inside(self.path)


def parse_package(raw: Any, where: str) -> tuple[str, str]:
    """Return package and path, from `{name: ..., path: ...}`. Raises ManifestError."""
    found = parse(PackageFile, raw, where)
    return found.name, found.path
