"""Conversions in tests, also those of third-party formats: running one, and the contract that every format keeps.

A plug-in's tests subclass `ConverterContract` and say how to make an artifact, and which tensors it has.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from trims.background.task import Running
from trims.core.errors import ArtifactError, TrimsError
from trims.formats.base import Artifact, Converter, Limits
from trims.formats.conversion.conversion import converter, detect, recipe, start_conversion
from trims.formats.conversion.environments import Environment
from trims.image.check import check_image
from trims.image.reader import ImageView

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from trims.background.task import Order
    from trims.formats.conversion.conversion import Conversion

#: Enough for any framework's import, little enough that a test that hangs is noticed.
LIMITS = Limits(memory_bytes=8 << 30, time_s=100.0)


def artifact_at(main: Path, *, format: str | None = None, **options: Any) -> Artifact:  # noqa: A002 - the manifest's word
    """Return the artifact whose main file this is; its format is detected unless given."""
    chosen = converter(format) if format else detect(main)
    return Artifact(chosen.format, chosen.files(main, options), options)


def convert(
    artifact: Artifact, target: Path, *, limits: Limits = LIMITS, on_progress: Callable[[int], None] | None = None
) -> Path:
    """Convert as the store does: plan, allocate, write, validate. Returns the target, an image file."""
    with start_conversion(artifact, limits=limits) as conversion:
        nbytes = conversion.plan()
        fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, nbytes)
            carried = _carried(conversion, nbytes) if conversion.is_carriable else None
            conversion.write(fd, on_progress)
        finally:
            os.close(fd)
    written = target.read_bytes()
    assert carried in (None, written), "another process would put another image together"
    check_image(ImageView(memoryview(written)))
    return target


def _carried(conversion: Conversion, nbytes: int) -> bytes:
    """Return the image as a copier puts it together; the conversion can still be written."""
    fd = os.memfd_create("carried", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, nbytes)

        def by(order: Order, on_progress: Callable[[int], None]) -> dict[str, str] | None:
            if order.target is None:  # it has all its bytes, and is to be hashed: a request comes to wait for it
                return None
            running = Running(order)
            while running.done_bytes < nbytes:
                on_progress(running.advance())
            running.close()
            return running.digests()

        assert conversion.carry(by, fd, large_pages=False) is None
        return os.pread(fd, nbytes, 0)
    finally:
        os.close(fd)


def write_plugin(folder: Path, module: str, source: str, **formats: str) -> None:
    """Put a package with `trims.formats` entry points into a folder, as an installer would.

    Args:
        folder: Folder that the caller puts on `sys.path`.
        module: Name of the module and of the distribution.
        formats: Format name -> name of the class in the module.
    """
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    lines = [f"{name} = {module}:{attribute}" for name, attribute in formats.items()]
    (info / "entry_points.txt").write_text("\n".join(["[trims.formats]", *lines, ""]))


class ConverterContract:
    """Subclass it as `TestMyFormat` and provide `format`, `make` and `tensors`. The format must be installed.

    Attributes:
        format: Name of the format.
        options: Options of the artifact, as a manifest states them.
    """

    format: ClassVar[str]
    options: ClassVar[Mapping[str, Any]] = {}

    def make(self, folder: Path) -> Path:
        """Write an artifact into an empty folder; returns its main file."""
        raise NotImplementedError

    def tensors(self) -> Mapping[str, NDArray[Any]]:
        """Return the tensors it has, by their names in the image; of their dtypes, and little endian."""
        raise NotImplementedError

    def artifact(self, main: Path, **options: Any) -> Artifact:
        """Return the artifact as the store looks at it."""
        return artifact_at(main, format=self.format, **{**self.options, **options})

    @pytest.fixture
    def main(self, tmp_path: Path) -> Path:
        """Return an artifact's main file, in a folder of its own."""
        folder = tmp_path / "artifact"
        folder.mkdir()
        return self.make(folder)

    def test_it_is_a_converter_that_says_what_the_image_depends_on(self) -> None:
        found = converter(self.format)
        assert isinstance(found, Converter)
        assert found.format == self.format
        assert type(found.version) is int
        assert type(found.needs_child(self.options)) is bool
        assert all(type(name) is str for name in found.frameworks(self.options))

    def test_it_alone_claims_its_files(self, main: Path) -> None:
        assert detect(main).format == self.format

    def test_claiming_never_raises(self) -> None:
        for data in (b"", b"\0" * 100, bytes(range(256)), b"PK\x03\x04", "\u20ac".encode()):
            for name in ("x", "x.bin", "x.json", f"x.{self.format}"):
                assert converter(self.format).claims(Path("/nowhere", name), data) in (True, False)

    def test_its_files_begin_with_the_main_one_and_are_absolute(self, main: Path) -> None:
        files = self.artifact(main).files
        assert files[0] == main
        assert all(path.is_absolute() and path.is_file() for path in files)
        assert len(set(files)) == len(files)

    def test_a_missing_file_is_an_error_that_names_it(self, main: Path) -> None:
        for path in self.artifact(main).files:
            hidden = path.rename(path.with_suffix(".hidden"))
            with pytest.raises(ArtifactError) as caught:
                self.artifact(main)
            assert path.stem in str(caught.value)
            hidden.rename(path)

    def test_an_option_it_does_not_know_is_named(self, main: Path) -> None:
        with pytest.raises(ArtifactError, match="no_such_option"):
            self.artifact(main, no_such_option=1)

    def test_its_recipe_is_json_and_stable(self, main: Path) -> None:
        found = recipe(converter(self.format), self.artifact(main), Environment())
        again = recipe(converter(self.format), self.artifact(main), Environment())
        assert found == json.loads(json.dumps(found)) == again

    def test_the_same_artifact_gives_the_same_image_and_is_left_as_it_was(self, main: Path, tmp_path: Path) -> None:
        before = {path: path.read_bytes() for path in main.parent.iterdir()}
        first = convert(self.artifact(main), tmp_path / "first")
        second = convert(self.artifact(main), tmp_path / "second")
        assert first.read_bytes() == second.read_bytes()
        assert {path: path.read_bytes() for path in main.parent.iterdir()} == before

    def test_the_image_holds_the_tensors(self, main: Path, tmp_path: Path) -> None:
        view = ImageView(memoryview(convert(self.artifact(main), tmp_path / "image").read_bytes()))
        found = {spec.name: (spec.shape, bytes(view.tensor(spec.name))) for spec in view.layout}
        assert found == {name: (array.shape, array.tobytes()) for name, array in self.tensors().items()}

    def test_a_conversion_can_be_closed_at_any_moment(self, main: Path) -> None:
        for steps in range(2):
            with start_conversion(self.artifact(main), limits=LIMITS) as conversion:
                if steps:
                    assert conversion.plan() >= sum(array.nbytes for array in self.tensors().values())

    @pytest.mark.parametrize("share", [0.0, 0.3, 0.95])
    def test_a_truncated_file_is_an_error_that_names_it(self, main: Path, tmp_path: Path, share: float) -> None:
        *_, last = self.artifact(main).files
        os.truncate(last, int(last.stat().st_size * share))
        with pytest.raises(TrimsError) as caught:
            convert(self.artifact(main), tmp_path / "image")
        assert main.stem in str(caught.value)
        assert caught.value.code in ("bad_artifact", "conversion")
