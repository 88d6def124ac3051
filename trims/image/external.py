"""Names of files inside a program, written with as many letters as there is room for.

A program may refer to the file in which its own image lies: ONNX models name files of external data. The name is known
when a process maps the image, not when the program is made. So the program has a name of a fixed length, and another of
the same length takes its place: no other byte moves, and the program need not be taken apart.
"""

from __future__ import annotations

from trims.core.errors import CallerError

#: The program declares the fed weights as external data in a file called `null` (see `trims.formats.onnx.converter`).
#: In this folder that file exists on every machine, so no file is written, and it has no bytes that could be read by
#: mistake.
EXTERNAL_FOLDER, NO_FOLDER = "session.model_external_initializers_file_folder_path", "/dev"
NO_PREPACKING = "session.disable_prepacking"


def pad_name(name: str, letters: int) -> str:
    """Return a relative path of exactly so many bytes in UTF-8 that leads to the same file as `name`.

    Raises CallerError if the name is longer.
    """
    missing = letters - len(name.encode())
    if missing < 0:
        raise CallerError(f"the name of the file {name!r} is longer than the {letters} bytes there is room for")
    if missing == 1:
        raise CallerError(f"the name of the file {name!r} cannot be made one byte longer; rename it")
    odd = ".//" if missing % 2 else ""
    return odd + "./" * ((missing - len(odd)) // 2) + name


def exchange_name(body: bytes, before: str, name: str) -> bytes:
    """Return the body with the padded name `before` exchanged for another file's. Raises as `pad_name`."""
    return body.replace(before.encode(), pad_name(name, len(before.encode())).encode())
