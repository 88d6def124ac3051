"""Which converter takes a file: by name, by its first bytes, or by a plugin."""

from __future__ import annotations

import math
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from format_plugins import PLUGIN

from trims.core.errors import ArtifactError, ConfigError, NotSupportedError, TrimsError
from trims.formats import plugins as registered
from trims.formats.base import Artifact
from trims.formats.conversion.conversion import converter, detect, start_conversion
from trims.formats.plugins import broken, formats, load_all
from trims.testing.converters import LIMITS, write_plugin

if TYPE_CHECKING:
    from collections.abc import Callable


def test_an_unknown_format_is_answered_with_those_there_are() -> None:
    with pytest.raises(NotSupportedError, match=r"no format 'gguf'; known are .*npz.*safetensors, torch"):
        converter("gguf")
    with pytest.raises(NotSupportedError, match="gguf"):
        start_conversion(Artifact("gguf", (Path("x"),)), limits=LIMITS)


def test_formats_are_detected_by_content(tmp_path: Path) -> None:
    np.savez(tmp_path / "arrays.bin", a=np.ones(1))
    (tmp_path / "arrays.bin.npz").rename(tmp_path / "arrays.data")
    (tmp_path / "weights").write_bytes((2).to_bytes(8, "little") + b"{}")
    assert detect(tmp_path / "arrays.data").format == "npz"
    assert detect(tmp_path / "weights").format == "safetensors"


def test_a_torch_checkpoint_is_detected_whatever_its_name(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    for number, zip_format in enumerate((True, False)):
        torch.save({"w": torch.ones(1)}, tmp_path / f"c{number}.x", _use_new_zipfile_serialization=zip_format)
        assert detect(tmp_path / f"c{number}.x").format == "torch"


@pytest.mark.parametrize("data", [b"hello", bytes(5000), b"PK\x03\x04" + bytes(100)])
def test_a_file_that_no_converter_claims_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.data").write_bytes(data)
    with pytest.raises(ArtifactError, match=r"x\.data is claimed by no converter; write `format:`"):
        detect(tmp_path / "x.data")
    with pytest.raises(ArtifactError, match="cannot be read"):
        detect(tmp_path / "missing")


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.pt", "a.params", "a.data"])
def test_an_empty_file_is_told_to_be_empty(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ArtifactError, match=rf"{name} is empty"):
        detect(tmp_path / name)


def test_a_plugin_adds_a_format(plugins: Path, tmp_path: Path) -> None:
    write_plugin(
        plugins, "plugin_of_test_a", PLUGIN.format(name="fresh", claims='main.suffix == ".fresh"'), fresh="Converter"
    )
    (tmp_path / "m.fresh").write_bytes(b"fresh")
    assert detect(tmp_path / "m.fresh") is converter("fresh")


def test_a_file_that_two_claim_is_refused_naming_both(plugins: Path, tmp_path: Path) -> None:
    write_plugin(plugins, "plugin_of_test_b", PLUGIN.format(name="greedy", claims="True"), greedy="Converter")
    (tmp_path / "weights").write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(ArtifactError, match=r"claimed by (greedy and safetensors|safetensors and greedy)"):
        detect(tmp_path / "weights")


@pytest.mark.parametrize(
    ("source", "attribute", "words"),
    [
        ("1/0", "Converter", "cannot be loaded: ZeroDivisionError"),
        ("import nowhere_to_be_found", "Converter", "cannot be loaded: ModuleNotFoundError"),
        ("", "Converter", "cannot be loaded: AttributeError"),
        ("class Converter: pass", "Converter", "is not a Converter whose format is 'broken'"),
        (PLUGIN.format(name="other", claims="True"), "Converter", "is not a Converter whose format is 'broken'"),
        ("def f(): raise OSError('no')", "f", "cannot be loaded: OSError: no"),
    ],
)
def test_a_plugin_that_does_not_work_is_named(plugins: Path, source: str, attribute: str, words: str) -> None:
    module = f"plugin_of_test_{zlib.crc32(source.encode())}"
    write_plugin(plugins, module, source, broken=attribute)
    with pytest.raises(ConfigError, match=f"plugin 'broken' \\({module}:{attribute}\\) {words}"):
        converter("broken")


def test_a_plugin_that_does_not_work_keeps_no_other_format_from_being_loaded(
    plugins: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_plugin(plugins, "plugin_of_test_load_all", "1/0", broken="Converter")
    load_all()
    assert "the format broken cannot be used: the trims.formats plugin 'broken'" in caplog.text
    assert converter("npz").format == "npz"


def test_two_plugins_of_one_name_are_refused(plugins: Path) -> None:
    for module in ("plugin_of_test_c", "plugin_of_test_d"):
        write_plugin(plugins, module, PLUGIN.format(name="twin", claims="True"), twin="Converter")
    with pytest.raises(ConfigError, match="two plugins call themselves 'twin'"):
        converter("twin")


@pytest.mark.parametrize(
    ("first_bytes", "words"),
    [
        (b"GGUF\3\0\0\0", "a GGUF file.*take the model's safetensors"),
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file.*save the weights as safetensors"),
        (b"\x80\4\x95", "a pickle that torch.save did not write: save its arrays as safetensors"),
    ],
)
def test_a_foreign_format_is_refused_by_its_name_with_the_way_out(
    tmp_path: Path, first_bytes: bytes, words: str
) -> None:
    (tmp_path / "weights").write_bytes(first_bytes + bytes(100))
    with pytest.raises(NotSupportedError, match=rf"weights is {words}"):
        detect(tmp_path / "weights")


def test_the_names_of_all_formats_are_sorted_and_include_plugins(plugins: Path) -> None:
    before = formats()
    assert list(before) == sorted(before)
    write_plugin(plugins, "plugin_of_test_f", PLUGIN.format(name="aaa", claims="False"), aaa="Converter")
    registered._entry_points.cache_clear()
    assert formats() == ("aaa", *before)


def test_a_file_that_no_converter_claims_goes_to_the_one_of_its_suffix(plugins: Path, tmp_path: Path) -> None:
    source = PLUGIN.format(name="named", claims="False").replace(
        "version = 3", "version = 3\n    suffixes = ('.named',)"
    )
    write_plugin(plugins, "plugin_of_test_g", source, named="Converter")
    (tmp_path / "m.named").write_bytes(b"anything")
    assert detect(tmp_path / "m.named").format == "named"


def safetensors_file(folder: Path) -> Path:
    (folder / "weights").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder / "weights"


@pytest.mark.parametrize("source", ["1/0", "raise SystemExit(3)", PLUGIN.format(name="broken", claims="1/0")])
def test_a_plugin_that_fails_keeps_no_other_format_from_being_detected(
    plugins: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, source: str
) -> None:
    module = f"plugin_of_test_h{zlib.crc32(source.encode())}"
    write_plugin(plugins, module, source, broken="Converter")
    registered._reported.clear()
    for _ in range(3):
        assert detect(safetensors_file(tmp_path)).format == "safetensors"
    assert caplog.text.count("trims.formats plugin 'broken'") == 1


def test_two_plugins_of_one_name_keep_no_other_format_from_being_detected(plugins: Path, tmp_path: Path) -> None:
    for module in ("plugin_of_test_i", "plugin_of_test_j"):
        write_plugin(plugins, module, PLUGIN.format(name="twin", claims="True"), twin="Converter")
    assert detect(safetensors_file(tmp_path)).format == "safetensors"
    assert "twin" in broken()


def test_a_plugin_with_the_name_of_a_format_of_trims_is_left_out(plugins: Path, tmp_path: Path) -> None:
    write_plugin(plugins, "plugin_of_test_k", PLUGIN.format(name="safetensors", claims="True"), safetensors="Converter")
    assert type(detect(safetensors_file(tmp_path))).__module__ == "trims.formats.safetensors.converter"
    assert converter("safetensors").version != 3
    assert broken() == {}


def test_a_file_that_no_converter_claims_is_refused_naming_the_plugin_that_fails(plugins: Path, tmp_path: Path) -> None:
    write_plugin(plugins, "plugin_of_test_l", "1/0", broken="Converter")
    (tmp_path / "m.data").write_bytes(b"anything")
    with pytest.raises(ArtifactError, match=r"no converter.*plugin 'broken' .*ZeroDivisionError.*restart the daemon"):
        detect(tmp_path / "m.data")


@pytest.mark.parametrize("ask", [lambda main: detect(main).format, lambda main: converter("late").format])
def test_a_plugin_that_is_installed_later_is_found_when_it_is_missed(
    plugins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Path], str]
) -> None:
    (tmp_path / "m.late").write_bytes(b"late")
    monkeypatch.setattr(registered, "_looked_at_s", -math.inf)
    with pytest.raises(TrimsError):
        ask(tmp_path / "m.late")
    write_plugin(
        plugins, "plugin_of_test_m", PLUGIN.format(name="late", claims='main.suffix == ".late"'), late="Converter"
    )
    monkeypatch.setattr(registered, "_looked_at_s", -math.inf)
    assert ask(tmp_path / "m.late") == "late"
