"""How a package that an environment lacks is installed where this program runs, for errors."""

from __future__ import annotations

import os
import sys
import sysconfig

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
    named = f"'{package}'" if "[" in package or "<" in package else package
    return f"{f'{python} -m ' if python else ''}pip install {named}"


def _in_container() -> bool:
    return _IMAGE in os.environ or any(map(os.path.exists, _OF_RUNTIMES))


def _can_install() -> bool:
    return any(os.access(folder, os.W_OK) for folder in (sysconfig.get_path("purelib"), os.path.expanduser("~")))
