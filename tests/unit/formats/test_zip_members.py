"""Members of a zip file that are stored, found without reading them; everything else is left to a conversion."""

from __future__ import annotations

import io
import os
import random
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from trims.core.errors import NotInPlaceError
from trims.formats import zip_members
from trims.formats.zip_members import Member, stored_members

if TYPE_CHECKING:
    from pathlib import Path


def members_of(data: bytes | bytearray, folder: Path) -> dict[str, Member]:
    path = folder / "m.zip"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        return stored_members(fd, len(data))
    finally:
        os.close(fd)


def archive(**how: Any) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", **how) as made:
        made.writestr("a", b"first")
        with made.open("folder/b", "w", force_zip64=True) as stream:
            stream.write(b"second")
    return target.getvalue()


def test_each_member_is_found_where_its_bytes_are(tmp_path: Path) -> None:
    data = archive()
    found = members_of(data, tmp_path)
    assert {name: data[at : at + nbytes] for name, (at, nbytes) in found.items()} == {
        "a": b"first",
        "folder/b": b"second",
    }


def test_an_empty_archive_has_none(tmp_path: Path) -> None:
    target = io.BytesIO()
    zipfile.ZipFile(target, "w").close()
    assert members_of(target.getvalue(), tmp_path) == {}


def twice() -> bytes:
    return archive().replace(b"folder/b", b"a\0\0\0\0\0\0\0")  # a name ends at its first zero


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (archive(compression=zipfile.ZIP_DEFLATED), "is packed, or there twice"),
        (archive().replace(b"PK\1\2\x14\3\x14\0\0", b"PK\1\2\x14\3\x14\0\1"), "is packed, or there twice"),
        (twice(), "is packed, or there twice"),
        (archive()[1:], "not where the directory says|cannot be read"),
        (archive()[:-1], "zip directory cannot be read"),
        (b"", "zip directory cannot be read"),
        (b"PK\3\4 no zip file", "zip directory cannot be read"),
    ],
    ids=["compressed", "encrypted", "twice", "begins late", "ends early", "empty", "no zip file"],
)
def test_an_archive_is_left_to_a_conversion_that_is(data: bytes, why: str, tmp_path: Path) -> None:
    with pytest.raises(NotInPlaceError, match=why):
        members_of(data, tmp_path)


@pytest.mark.parametrize("field", ["offset", "length"])
def test_a_member_that_would_lie_outside_the_file(field: str, tmp_path: Path) -> None:
    data = bytearray(archive())
    at = data.index(b"PK\1\2") + (42 if field == "offset" else 24)
    data[at : at + 4] = (1 << 30).to_bytes(4, "little")
    with pytest.raises(NotInPlaceError, match=r"not where the directory says|ends behind the file|is packed"):
        members_of(data, tmp_path)


def test_a_large_directory_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zip_members, "DIRECTORY_BYTES", 100)
    with pytest.raises(NotInPlaceError, match="too large"):
        members_of(archive(), tmp_path)


def test_random_damage_gives_members_inside_the_file_or_a_refusal(tmp_path: Path) -> None:
    good, chance, refused = archive(), random.Random(0), 0
    for _ in range(300):
        data = bytearray(good)
        for _ in range(chance.choice([1, 2, 20])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        data = data[: chance.choice([len(data), chance.randrange(1, len(data))])]
        try:
            found = members_of(data, tmp_path)
        except NotInPlaceError:
            refused += 1
        else:
            assert all(0 <= at <= at + nbytes <= len(data) for at, nbytes in found.values())
    assert 50 < refused < 300
