"""The folder of one set of files: names, versions, locks."""

from __future__ import annotations

import errno
import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import ArtifactError, DeadlineError
from trims.sources.base import RemoteFile
from trims.sources.files import Folder, exclusive, full, is_full

if TYPE_CHECKING:
    from pathlib import Path

FILE = RemoteFile("a/m.bin", 3, '"v1"')

#: Each stands for itself alone, whatever its server states.
ADDRESSES = (
    "http://h/b", "http://h/a/", "http://h/a%2F", "http://h/A", "http://h/a?f=v1", "http://h/a?f=v2", "http://h/a?F=v1",
    "http://h/a?f=v1&f=v2", "http://h/a?sig=1", "http://h/a?sig=2", "http://h:81/a", "https://h/a", "s3://b/a",
    "s3://b/a?x-amz-date=1", "s3://b/a#1", "abfs://c@one1.dfs.core.windows.net/a",
    "abfs://c@two2.dfs.core.windows.net/a", "az://c/a",
)  # fmt: skip


def folder(tmp_path: Path, *files: RemoteFile, address: str = "http://h/a") -> Folder:
    return Folder(tmp_path, address, files or (FILE,))


def test_a_file_is_found_under_its_name_once_it_is_published(tmp_path: Path) -> None:
    made = folder(tmp_path)
    assert made.find(FILE) is None
    partial = made.partial(FILE)
    partial.write_bytes(b"abc")
    assert made.find(FILE) is None
    assert made.publish(FILE, partial) == made.finish([FILE]) / "a" / "m.bin"
    assert made.find(FILE) == made.path / "a" / "m.bin"
    made.find(FILE).write_bytes(b"ab")  # type: ignore[union-attr]
    assert made.find(FILE) is None, "it was cut"


def test_each_version_and_address_has_a_folder_of_its_own(tmp_path: Path) -> None:
    made = {
        folder(tmp_path).path,
        folder(tmp_path, RemoteFile("a/m.bin", 3, '"v2"')).path,
        folder(tmp_path, RemoteFile("a/m.bin", 3, '"v1"', {"sha256": "0"})).path,
        folder(tmp_path, FILE, RemoteFile("b", 1)).path,
        *(folder(tmp_path, address=address).path for address in ADDRESSES),
    }
    assert len(made) == 4 + len(ADDRESSES)
    assert folder(tmp_path).path in made


def test_of_a_file_without_a_version_nothing_that_lies_there_is_taken(tmp_path: Path) -> None:
    file = RemoteFile("m", 3)
    made = folder(tmp_path, file)
    partial = made.partial(file)
    partial.write_bytes(b"abc")
    assert made.publish(file, partial).read_bytes() == b"abc"
    assert made.find(file) is None


# fault (sources): a hostile file name -> `bad_artifact`; nothing outside the folder
@pytest.mark.parametrize("name", ["../m", "/etc/passwd", "a/../../m", "a\\..\\m", "", "a\0b", " trims/m"])
def test_a_name_that_leaves_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    file = RemoteFile(name, 3, '"v1"')
    made = folder(tmp_path, file)
    partial = made.partial(file)
    partial.write_bytes(b"abc")
    with pytest.raises(ArtifactError, match="names a file"):
        made.publish(file, partial)
    with pytest.raises(ArtifactError):
        made.find(file)


@pytest.mark.parametrize("name", ["x" * 300, "a/m.bin/below", "a"], ids=["too long", "below a file", "a folder"])
def test_a_name_that_has_no_place_is_refused(name: str, tmp_path: Path) -> None:
    file = RemoteFile(name, 3, '"v1"')
    made = folder(tmp_path, FILE, file)
    for each in (FILE, file):
        made.partial(each).write_bytes(b"abc")
    made.publish(FILE, made.partial(FILE))
    with pytest.raises(ArtifactError) as raised:
        made.publish(file, made.partial(file))
    assert raised.value.code == "bad_artifact"


def test_one_process_writes_a_file_and_others_wait_as_long_as_they_are_wanted(tmp_path: Path) -> None:
    made, asked = folder(tmp_path), list[int]()

    def wanted() -> bool:
        asked.append(1)
        return len(asked) < 3

    with made.lock(FILE, lambda: True), pytest.raises(DeadlineError), made.lock(FILE, wanted):
        raise AssertionError("two write it")
    assert len(asked) == 3
    with made.lock(FILE, lambda: False):
        pass


def test_a_lock_whose_folder_was_removed_meanwhile_is_taken_again(tmp_path: Path) -> None:
    path, waiting, held = tmp_path / "own" / "m.lock", threading.Event(), list[bool]()

    def wanted() -> bool:
        waiting.set()
        return True

    def wait() -> None:
        with exclusive(path, wanted):
            held.append(path.exists())

    with exclusive(path, lambda: True):
        thread = threading.Thread(target=wait)
        thread.start()
        assert waiting.wait(30)
        shutil.rmtree(path.parent)
    thread.join(30)
    assert held == [True]


def test_a_full_disk_is_an_error_with_the_room_that_is_left(tmp_path: Path) -> None:
    assert all(is_full(OSError(number, "")) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
    assert not is_full(OSError(errno.EACCES, ""))
    error = full(tmp_path, "7 GiB do not fit")
    assert error.code == "no_space"
    assert error.room_bytes is not None
    assert error.room_bytes > 0
