"""Files are taken over however they are replaced, and stay as they were while they are broken."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import ConfigError
from trims.followed_files import MOST_BYTES, FollowedFiles, read_whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Value:
    """Text of a file; the word `broken` is refused."""

    def __init__(self, path: Path) -> None:
        self.path, self.now, self.reads = path, path.read_text(), 0
        self.files = FollowedFiles("the file", [path], self.read)

    def read(self) -> Callable[[], None]:
        self.reads += 1
        text = self.path.read_text()
        if "broken" in text:
            raise ConfigError("it is broken")
        return lambda: setattr(self, "now", text)

    def look(self) -> str:
        """Look until a change has rested."""
        for _ in range(2):
            take = self.files.look()
            if take is not None:
                take()
        return self.now


def rewrite(path: Path, text: str) -> None:
    path.write_text(text)


def rename_over(path: Path, text: str) -> None:
    (path.parent / "next").write_text(text)
    (path.parent / "next").replace(path)


def switch_link(path: Path, text: str) -> None:
    """As Kubernetes does: the file is a link through `..data`, which leads to another folder from now on."""
    folder = path.parent / f"..{text.replace(' ', '')}"
    folder.mkdir()
    (folder / path.name).write_text(text)
    (path.parent / "..data_tmp").symlink_to(folder.name)
    (path.parent / "..data_tmp").replace(path.parent / "..data")
    if not path.is_symlink():
        path.unlink()
        path.symlink_to(f"..data/{path.name}")


@pytest.mark.parametrize("replace", [rewrite, rename_over, switch_link])
def test_a_file_is_taken_over_and_a_broken_one_is_reported_once(
    replace: Callable[[Path, str], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    value = Value(path)
    assert value.look() == "first"
    replace(path, "second one")
    assert value.look() == "second one"
    with caplog.at_level(logging.WARNING):
        replace(path, "broken third")
        assert [value.look() for _ in range(3)] == ["second one"] * 3
    assert [record.levelname for record in caplog.records if record.levelno > logging.INFO] == ["WARNING"]
    assert "cannot be used" in caplog.text
    replace(path, "fourth and last")
    assert value.look() == "fourth and last"


def test_a_file_that_is_gone_counts_on_until_it_is_back(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    value = Value(path)
    value.look()
    path.unlink()
    assert value.look() == "first"
    path.write_text("second")
    assert value.look() == "second"


def test_a_file_that_is_being_written_is_not_read_before_it_rests(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    value = Value(path)
    value.look()
    for number in range(3):
        path.write_text("half" * (number + 1))
        assert value.files.look() is None
    assert value.look() == "half" * 3


def test_an_unchanged_file_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    value = Value(path)
    for _ in range(5):
        value.look()
    assert value.reads == 1
    os.utime(path, (1, 1))
    value.look()
    assert value.reads == 2


def test_what_is_no_small_file_is_refused_without_a_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", MOST_BYTES + 1)
    for name in ("fifo", "large", "missing", ".", "\0"):
        with pytest.raises(ConfigError, match=r"no token can be read from .*: "):
            read_whole(tmp_path / name, "token")
    (tmp_path / "large").write_bytes(b"word")
    assert read_whole(tmp_path / "large", "token")[0] == b"word"
