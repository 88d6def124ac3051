"""Names of files that are opened without a manifest: by their format, or as they are, byte for byte."""

from __future__ import annotations

from trims.core.errors import ArtifactChangedError, CallerError
from trims.store.catalog import FILE_PREFIX

_BYTES_PREFIX = "bytes:"
#: Beginning of the name of a file that is wanted as it is; its identity follows, so the name never changes its meaning.
AT_IDENTITY = FILE_PREFIX + _BYTES_PREFIX


def split_file_name(name: str) -> tuple[str, str | None]:
    """Return the path in the name of a file (`FILE_PREFIX`), and the identity that its bytes are wanted at.

    The identity is None for a file that is read by its format: `file:/models/bert.bin`. A file is wanted as it is by
    `file:bytes:IDENTITY:/models/bert.bin`, with `identity_of` the file. Raises CallerError for another form.
    """
    rest = name.removeprefix(FILE_PREFIX)
    asked, slash, path = rest.partition("/")
    if not asked:
        return rest, None
    if not slash or not asked.startswith(_BYTES_PREFIX) or not asked.endswith(":") or asked == _BYTES_PREFIX:
        raise CallerError(f"{rest!r} is not absolute; the daemon does not know your current folder")
    return slash + path, asked.removeprefix(_BYTES_PREFIX)[:-1]


def check_identity(name: str, identities: tuple[str, ...]) -> None:
    """Raise ArtifactChangedError for a file that is not at the identity that its bytes are wanted at."""
    if not name.startswith(FILE_PREFIX):
        return
    path, wanted = split_file_name(name)
    if wanted is not None and identities != (wanted,):
        raise ArtifactChangedError(f"{path} is not the file that it was when it was asked for; ask again")
