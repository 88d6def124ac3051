"""The contract every source of artifacts keeps, as an inheritable suite.

A plug-in's tests subclass `SourceContract` and put files where their source finds them. The suite calls the source as
a transfer does: it looks once, and then fills parts of memory from several threads, in any order.
"""

from __future__ import annotations

import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import ArtifactChangedError, ArtifactNotFoundError, CallerError, TrimsError
from trims.sources.base import CHECKSUMS, Opened, RemoteFile, Source
from trims.sources.transfer import checksums

if TYPE_CHECKING:
    from collections.abc import Mapping

_DEADLINE_S = 60.0
_ONE = random.Random(11).randbytes(3_000_017)  # noqa: S311 - the same bytes each time, no secret


class SourceContract:
    """Subclass it as `TestMySource`.

    Attributes:
        has_versions: A file that is replaced is noticed.
        has_folders: An address can hold several files.
    """

    has_versions = True
    has_folders = True

    @pytest.fixture
    def source(self) -> Source:
        """Return a source of the scheme."""
        raise NotImplementedError

    def put(self, files: Mapping[str, bytes]) -> str:
        """Put files where the source finds them, under names relative to an address; return that address.

        A single file's name is the address's last part. A second call with the same names replaces their bytes.
        """
        raise NotImplementedError

    def missing(self) -> str:
        """Return an address, of a host or bucket that is there, that holds nothing."""
        raise NotImplementedError

    def test_a_file_is_described_and_read_in_any_order(self, source: Source) -> None:
        opened = source.open(self.put({"one.bin": _ONE}))
        try:
            assert isinstance(opened, Opened)
            (file,) = opened.files
            assert (file.name, file.nbytes) == ("one.bin", len(_ONE))
            assert file.checksums.keys() <= set(CHECKSUMS)
            assert bool(file.version) or not self.has_versions
            assert read(opened, file, piece=1_000_000, threads=4) == _ONE
        finally:
            opened.close()

    def test_adjoining_parts_come_in_order_and_one_by_one(self, source: Source) -> None:
        opened = source.open(self.put({"one.bin": _ONE}))
        try:
            room = bytearray(len(_ONE))
            view = memoryview(room)
            edges = [0, 1, 2, 500_000, 500_001, len(_ONE)]
            parts = [(begin, view[begin:end]) for begin, end in itertools.pairwise(edges)]
            for number, _ in enumerate(opened.fill(opened.files[0], parts)):
                assert room[: edges[number + 1]] == _ONE[: edges[number + 1]]
        finally:
            opened.close()

    def test_a_reader_that_stops_early_harms_no_other(self, source: Source) -> None:
        opened = source.open(self.put({"one.bin": _ONE}))
        try:
            file, scratch = opened.files[0], memoryview(bytearray(2_000_000))
            filling = opened.fill(file, [(0, scratch[:1_000_000]), (1_000_000, scratch[1_000_000:])])
            next(filling)
            getattr(filling, "close", lambda: None)()
            assert read(opened, file, piece=len(_ONE), threads=1) == _ONE
        finally:
            opened.close()

    def test_checksums_that_are_stated_are_those_of_the_bytes(self, source: Source) -> None:
        opened = source.open(self.put({"one.bin": _ONE}))
        try:
            for name, digest in opened.files[0].checksums.items():
                assert digest == _digest(name, _ONE), name
        finally:
            opened.close()

    def test_nothing_at_an_address_is_an_error(self, source: Source) -> None:
        with pytest.raises(ArtifactNotFoundError):
            source.open(self.missing())

    def test_an_address_that_is_none_is_the_callers_error(self, source: Source) -> None:
        scheme = self.missing().partition(":")[0]
        with pytest.raises(CallerError):
            source.open(f"{scheme}://")

    def test_a_file_that_was_replaced_is_noticed(self, source: Source) -> None:
        if not self.has_versions:
            pytest.skip("this source states no versions")
        opened = source.open(self.put({"one.bin": _ONE}))
        try:
            self.put({"one.bin": _ONE[::-1]})
            with pytest.raises((ArtifactChangedError, ArtifactNotFoundError)):
                read(opened, opened.files[0], piece=len(_ONE), threads=1)
        finally:
            opened.close()

    def test_several_files_have_names_below_the_address(self, source: Source) -> None:
        if not self.has_folders:
            pytest.skip("an address of this source is a file")
        files = {"config.json": b'{"a": 1}', "parts/two.bin": _ONE[:70_000], "one.bin": _ONE}
        opened = source.open(self.put(files))
        try:
            found = {file.name: read(opened, file, piece=1 << 20, threads=2) for file in opened.files}
            assert found == files
            assert [file.name for file in opened.files] == sorted(files)
        finally:
            opened.close()

    def test_closing_ends_reads_and_may_be_done_twice(self, source: Source) -> None:
        opened = source.open(self.put({"one.bin": _ONE}))
        opened.close()
        opened.close()
        with pytest.raises(TrimsError):
            read(opened, opened.files[0], piece=len(_ONE), threads=1)


def read(opened: Opened, file: RemoteFile, *, piece: int, threads: int) -> bytes:
    """Read a whole file in parts, over several threads, the last part first."""
    room = bytearray(file.nbytes)
    view, left = memoryview(room), list(range(0, file.nbytes, piece))
    lock = threading.Lock()

    def some() -> None:
        while True:
            with lock:
                if not left:
                    return
                begin = left.pop()
            for _ in opened.fill(file, [(begin, view[begin : begin + piece])]):
                pass

    with ThreadPoolExecutor(threads) as pool:
        for each in [pool.submit(some) for _ in range(threads)]:
            each.result(_DEADLINE_S)
    return bytes(room)


def _digest(name: str, data: bytes) -> str:
    if name in checksums.COMBINED:
        return checksums.combined(name, [(checksums.of_piece(name, memoryview(data)), len(data))])
    hasher = checksums.hasher(name, len(data))
    hasher.update(data)
    return str(hasher.hexdigest())
