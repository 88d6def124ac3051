"""Finding converters, recipes, environments and builders: all that surrounds a conversion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from trims.core.errors import ArtifactError, ConfigError, ConversionError, NotSupportedError
from trims.formats import plugins as registered
from trims.formats.base import Artifact, Limits, check_relative
from trims.formats.build import build_artifact
from trims.formats.conversion import converter, detect, recipe, start_conversion
from trims.formats.environments import Environment
from trims.testing.converters import LIMITS, write_plugin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PLUGIN = """
class Converter:
    format = "{name}"
    version = 3
    host_specific = True
    def needs_child(self, options): return False
    def frameworks(self, options): return ("numpy", "no-such-distribution")
    def claims(self, main, first_bytes): return {claims}
    def files(self, main, options): return (main,)
    def plan(self, artifact): raise NotImplementedError
"""


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on `sys.path` in which plugins may be installed."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    registered._entry_points.cache_clear()
    yield folder
    for name in [name for name in sys.modules if name.startswith("plugin_of_test")]:
        del sys.modules[name]
    registered._entry_points.cache_clear()


# -- plugins ----------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("data", [b"", b"hello", bytes(5000), b"PK\x03\x04" + bytes(100)])
def test_a_file_that_nobody_claims_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.data").write_bytes(data)
    with pytest.raises(ArtifactError, match=r"x\.data is claimed by no converter; write `format:`"):
        detect(tmp_path / "x.data")
    with pytest.raises(ArtifactError, match="cannot be read"):
        detect(tmp_path / "missing")


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


def test_two_plugins_of_one_name_are_refused(plugins: Path) -> None:
    for module in ("plugin_of_test_c", "plugin_of_test_d"):
        write_plugin(plugins, module, PLUGIN.format(name="twin", claims="True"), twin="Converter")
    with pytest.raises(ConfigError, match="two plugins call themselves 'twin'"):
        converter("twin")


@pytest.mark.parametrize("name", ["", "/a", "..", "a/../b", "a\0"])
def test_names_inside_an_artifact_stay_in_its_folder(name: str) -> None:
    with pytest.raises(ArtifactError, match="which leaves its folder"):
        check_relative(Path("index.json"), name)
    check_relative(Path("index.json"), "sub/a..b.bin")


# -- recipes --------------------------------------------------------------------------------------------------------


def test_a_recipe_is_json_that_says_all_but_the_bytes(plugins: Path) -> None:
    write_plugin(plugins, "plugin_of_test_e", PLUGIN.format(name="fresh", claims="True"), fresh="Converter")
    artifact = Artifact("fresh", (Path("/x"),), {"b": [1], "a": None})
    found = recipe(converter("fresh"), artifact, Environment())
    assert found == json.loads(json.dumps(found))
    assert found["format"] == "fresh"
    assert found["converter"] == 3
    assert found["options"] == {"a": None, "b": [1]}
    assert found["frameworks"] == {"numpy": np.__version__}
    assert found["cpu"]
    assert recipe(converter("fresh"), artifact, Environment()) == found


def test_a_recipe_holds_nothing_the_image_does_not_depend_on() -> None:
    found = recipe(converter("safetensors"), Artifact("safetensors", (Path("/x"),)), Environment())
    assert found == {"format": "safetensors", "converter": 1, "options": {}}


# -- environments ---------------------------------------------------------------------------------------------------


def venv(folder: Path, **versions: str) -> Path:
    """A virtual environment without pip, with the metadata of these distributions."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    for name, version in versions.items():
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def other_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return venv(tmp_path_factory.mktemp("env") / "venv", numpy="1.0", mxnet="1.9.1")


def test_versions_of_this_environment_are_found() -> None:
    assert Environment().versions(["numpy", "nothing-of-this-name"]) == {"numpy": np.__version__}


def test_versions_of_another_environment_are_read_without_starting_it(other_python: Path) -> None:
    environment = Environment(other_python)

    assert environment._paths is not None
    assert environment.versions(["numpy", "mxnet", "torch"]) == {"mxnet": "1.9.1", "numpy": "1.0"}


def test_an_environment_of_unknown_layout_is_asked(other_python: Path, tmp_path: Path) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {other_python} "$@"\n')
    wrapper.chmod(0o755)
    environment = Environment(wrapper)
    assert environment._paths is None
    assert environment.versions(["numpy", "torch"]) == {"numpy": "1.0"}


def test_an_interpreter_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a Python interpreter"):
        Environment(tmp_path / "python")


# -- builders -------------------------------------------------------------------------------------------------------

BUILDERS = """
import os, sys
def one(out_dir, text="x"):
    (out_dir / "model.bin").write_text(text)
def several(out_dir):
    (out_dir / "sub").mkdir()
    (out_dir / "sub" / "weights").write_text("w")
    (out_dir / "model").write_text("m")
    return "sub/weights"
def unsaid(out_dir):
    (out_dir / "a").write_text(""); (out_dir / "b").write_text("")
def nothing(out_dir): pass
def wrong_name(out_dir):
    one(out_dir)
    return "other.bin"
def outside(out_dir): return "../../etc/passwd"
def no_name(out_dir): return 3
def fails(out_dir): raise ValueError("the weights are sold out")
def dies(out_dir):
    (out_dir / "half").write_text("h")
    os._exit(4)
def counted(out_dir, log):
    with open(log, "a") as file: file.write("built\\n")
    one(out_dir)
def sees(out_dir):
    import json, sys
    found = {"prefix": sys.prefix, "path": sys.path, "trims": sys.modules["trims"].__file__}
    for name in ("numpy", "trims_client", "yaml"):
        try: __import__(name)
        except ImportError: found[name] = False
        else: found[name] = True
    (out_dir / "sees").write_text(json.dumps(found))
"""


@pytest.fixture
def builders(tmp_path: Path) -> Path:
    folder = tmp_path / "builders"
    folder.mkdir()
    (folder / "builders_of_test.py").write_text(BUILDERS)
    return folder


def build(name: str, target: Path, folder: Path, python: Path | None = None, **args: Any) -> Path:
    return build_artifact(f"builders_of_test:{name}", args, target, python=python, limits=LIMITS, extra_paths=[folder])


def test_a_builder_makes_an_artifact_once(builders: Path, tmp_path: Path) -> None:
    target, log = tmp_path / "deep" / "made", tmp_path / "log"
    for _ in range(2):
        assert build("counted", target, builders, log=str(log)) == target / "model.bin"
    assert log.read_text() == "built\n"
    assert (target / "model.bin").read_text() == "x"


def test_the_main_file_is_the_one_the_builder_names(builders: Path, tmp_path: Path) -> None:
    assert build("several", tmp_path / "made", builders) == tmp_path / "made" / "sub" / "weights"
    assert build("one", tmp_path / "other", builders, text="y").read_text() == "y"


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("unsaid", ArtifactError, "left 2 files and did not say which is the main one"),
        ("nothing", ArtifactError, "left 0 files"),
        ("wrong_name", ArtifactError, r"returned 'other\.bin', but left \['model\.bin'\]"),
        ("outside", ArtifactError, "which leaves its folder"),
        ("no_name", ArtifactError, "must return a file name or None"),
        ("fails", ConversionError, "builders_of_test:fails: ValueError: the weights are sold out"),
        ("dies", ConversionError, "ended with exit code 4"),
        ("missing", NotSupportedError, "has no attribute 'missing'"),
    ],
)
def test_a_builder_that_fails_leaves_nothing_behind(
    builders: Path, tmp_path: Path, name: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        build(name, tmp_path / "out" / "made", builders)
    assert os.listdir(tmp_path / "out") == [".made.lock"]


def test_what_a_killed_builder_left_is_swept_by_the_next(builders: Path, tmp_path: Path) -> None:
    left = tmp_path / "out" / ".made.building-abc"
    left.mkdir(parents=True)
    (left / "half").write_text("h")
    build("one", tmp_path / "out" / "made", builders)
    assert sorted(os.listdir(tmp_path / "out")) == [".made.lock", "made"]


def test_eight_builders_at_once_build_once(builders: Path, tmp_path: Path) -> None:
    target, log = tmp_path / "made", tmp_path / "log"
    start = threading.Barrier(8)
    found: list[Path] = []

    def run() -> None:
        start.wait()
        found.append(build("counted", target, builders, log=str(log)))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [target / "model.bin"] * 8
    assert log.read_text() == "built\n"


def test_a_folder_that_no_builder_made_is_refused(builders: Path, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    with pytest.raises(ArtifactError, match="was not made by a builder"):
        build("one", tmp_path / "made", builders)


def test_a_child_in_another_environment_sees_trims_and_nothing_else_of_ours(
    builders: Path, tmp_path: Path, other_python: Path
) -> None:
    found: Mapping[str, Any] = json.loads(build("sees", tmp_path / "made", builders, other_python).read_text())
    assert found["prefix"] == str(other_python.parent.parent)
    assert Path(found["trims"]) == Path(registered.__file__).parent.parent / "__init__.py"
    assert (found["numpy"], found["trims_client"], found["yaml"]) == (False, False, False)
    ours = {path for path in sys.path if "site-packages" in path}
    assert not ours.intersection(found["path"])


def test_a_package_of_ours_is_lent_to_another_environment_for_its_builder(tmp_path: Path, other_python: Path) -> None:
    target = tmp_path / "made"
    with pytest.raises(ConversionError, match=r"TypeError: .*DTYPE"):  # found and called, there
        build_artifact(
            "trims_client.weights:numpy_dtype", {"DTYPE": 1}, target, python=other_python, limits=Limits(time_s=60)
        )


def test_a_builder_that_waits_too_long_for_another_says_so(builders: Path, tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / ".made.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConversionError, match="another builder is still at it after 0 s"):
            build_artifact("builders_of_test:one", {}, tmp_path / "made", python=None, limits=Limits(time_s=0))
