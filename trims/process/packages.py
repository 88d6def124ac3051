"""How a package that an environment lacks is installed where this program runs, for errors."""

from __future__ import annotations

import os
import sys
import sysconfig

_OURS = "trims"
#: Characters that a shell would not leave as they are.
_QUOTED = set("[]<> ")
#: Set in our images (deploy/Dockerfile), which may run where no runtime leaves a file of its own.
_IMAGE = "TRIMS_IMAGE"
#: Files that Docker and Podman leave in the root of a container.
_OF_RUNTIMES = ("/.dockerenv", "/run/.containerenv")


def install_words(package: str, python: str = "") -> str:
    """Return how a package comes into this environment.

    In a container in which pip has no folder to write to, the image has to bring it.

    Args:
        python: Interpreter that it is for; empty where there is only one.
    """
    if _in_container() and not _can_install():
        return (
            f"build the image of this container with {package} (deploy/Dockerfile: --build-arg FRAMEWORKS=torch,... "
            f"for extras of trims, PACKAGES=... for others), because nothing can be installed in {sys.prefix}"
        )
    name, bracket, extras = package.partition("[")
    flag, where = _origin() if name == _OURS else ("", name)
    named = f"'{where}{bracket}{extras}'" if set(package + where) & _QUOTED else where
    return f"{f'{python} -m ' if python else ''}pip install {flag}{named}"


def _origin() -> tuple[str, str]:
    """Return what pip was given when trims was installed: a flag, and a folder, a wheel, or the name (PEP 610)."""
    # Else pip would ask the index for a name that others may have there, until trims is released.
    import importlib.metadata
    import json
    import urllib.parse

    try:
        found = json.loads(importlib.metadata.distribution(_OURS).read_text("direct_url.json") or "{}")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        found = {}
    url = urllib.parse.urlsplit(found.get("url", ""))
    if url.scheme != "file":
        return "", _OURS
    return "-e " if found.get("dir_info", {}).get("editable") else "", urllib.parse.unquote(url.path)


def _in_container() -> bool:
    return _IMAGE in os.environ or any(map(os.path.exists, _OF_RUNTIMES))


def _can_install() -> bool:
    return any(os.access(folder, os.W_OK) for folder in (sysconfig.get_path("purelib"), os.path.expanduser("~")))
