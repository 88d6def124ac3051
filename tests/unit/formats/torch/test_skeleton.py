"""Skeletons: a module is matched with an artifact's tensors and pickled without them."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from torch_files import CONVERTER, MODULES, assert_equal, image_of, saved, tensors_of

import trims

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from trims.core.errors import ArtifactError, NotSupportedError, TrimsError  # noqa: E402
from trims.formats.base import Artifact  # noqa: E402
from trims.image.reader import ImageView  # noqa: E402
from trims.testing import torch_modules  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


def test_a_skeleton_says_all_that_a_client_must_know(tmp_path: Path) -> None:
    path = saved(tmp_path, torch_modules.tied_model().state_dict())
    view = image_of(path, module=f"{MODULES}:tied_model")
    program = view.program()
    assert program is not None
    assert program.kind == "torch-skeleton"
    assert program.attributes == json.loads(json.dumps({
        "class": f"{MODULES}.TiedModel",
        "training": False,
        "versions": {"torch": torch.__version__, "trims": trims.__version__},
        "buffers": ["calls", "positions"],
        "non_persistent": ["positions"],
        "added": ["__constant__.0", "positions"],
        "constants": ["__constant__.0"],
        "frozen": ["calls", "scale"],
        "tied": [["embedding.weight", "out.weight"]],
    }))  # fmt: skip
    assert torch.equal(tensors_of(view)["positions"], torch.arange(5.0).reshape(5, 1))
    assert len(program.body) < 4000


@pytest.mark.parametrize("beside", [True, False])
def test_a_skeleton_names_the_folder_of_classes_that_lie_beside_its_manifest(beside: bool, tmp_path: Path) -> None:
    (tmp_path / "skeleton_mods.py").write_text(
        "import torch\nclass Net(torch.nn.Linear): pass\ndef build(): return Net(2, 2)\n"
    )
    path = saved(tmp_path, nn.Linear(2, 2).state_dict())
    call = "skeleton_mods:build" if beside else f"{MODULES}:conv_net"
    if not beside:
        path = saved(tmp_path, torch_modules.conv_net().state_dict())
    plan = CONVERTER.plan(Artifact("torch", (path,), {"module": call}, str(tmp_path)))
    memory = bytearray(plan.nbytes)
    plan.write_into(memoryview(memory))
    sys.modules.pop("skeleton_mods", None)
    program = ImageView(memoryview(memory)).program()
    assert program is not None
    found = {name: program.attributes.get(name) for name in ("origin", "modules")}
    assert found == {"origin": str(tmp_path) if beside else None, "modules": ["skeleton_mods"] if beside else None}


def test_a_file_that_keeps_one_name_of_a_tied_weight_gets_the_other(tmp_path: Path) -> None:
    state = torch_modules.tied_model().state_dict()
    for kept, dropped in (("embedding.weight", "out.weight"), ("out.weight", "embedding.weight")):
        path = saved(tmp_path, {name: tensor for name, tensor in state.items() if name != dropped})
        tensors = image_of(path, module=f"{MODULES}:tied_model").layout.tensors
        assert tensors[kept].offset == tensors[dropped].offset


def test_names_that_do_not_fit_the_module_are_all_listed(tmp_path: Path) -> None:
    state = torch_modules.conv_net().state_dict()
    state["surplus"] = state.pop("head.bias")
    path = saved(tmp_path, state)
    with pytest.raises(ArtifactError, match=r"missing 'head\.bias'; unexpected 'surplus'"):
        image_of(path, module=f"{MODULES}:conv_net")


def test_left_over_names_may_be_ignored_by_pattern(tmp_path: Path) -> None:
    state = torch_modules.conv_net().state_dict() | {"old.a": torch.ones(1), "old.b": torch.ones(1)}
    view = image_of(saved(tmp_path, state), module=f"{MODULES}:conv_net", ignore=["old.*"])
    assert "old.a" in view.layout.tensors


def test_a_tensor_named_like_a_non_persistent_buffer_is_the_modules_as_in_torch(tmp_path: Path) -> None:
    state = torch_modules.tied_model().state_dict() | {"positions": torch.zeros(5, 1)}
    view = image_of(saved(tmp_path, state), module=f"{MODULES}:tied_model")
    assert torch.equal(tensors_of(view)["positions"], torch.arange(5.0).reshape(5, 1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda bias: bias.half(), r"'head.bias' is F16\[2\], the module has F32\[2\]"),
        (lambda bias: bias[:1], r"'head.bias' is F32\[1\], the module has F32\[2\]"),
    ],
)
def test_a_dtype_or_shape_that_does_not_fit_the_module_is_named(tmp_path: Path, change: Any, words: str) -> None:
    state = torch_modules.conv_net().state_dict()
    state["head.bias"] = change(state["head.bias"])
    with pytest.raises(ArtifactError, match=words):
        image_of(saved(tmp_path, state), module=f"{MODULES}:conv_net")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"module": "nowhere:f"}, NotSupportedError, "'nowhere:f' cannot be loaded in .*No module named 'nowhere'"),
        ({"module": f"{MODULES}:nothing"}, NotSupportedError, "has no attribute 'nothing'"),
        ({"module": "json"}, ArtifactError, "must be 'package.module:function'"),
        ({"module": 3}, ArtifactError, "must be 'package.module:function'"),
        ({"module": f"{MODULES}:conv_net", "module_args": [1]}, ArtifactError, "module_args a map"),
        ({"module": f"{MODULES}:no_module"}, ArtifactError, "returned a dict, not a torch.nn.Module"),
    ],
)
def test_a_builder_that_does_not_work_is_named(
    tmp_path: Path, options: dict[str, Any], error: type[TrimsError], words: str
) -> None:
    with pytest.raises(error, match=words):
        image_of(saved(tmp_path, torch_modules.conv_net().state_dict()), **options)


@pytest.mark.parametrize("build", ["with_lambda", "weight_normed", "weight_normed_by_hooks", "spectrally_normed"])
def test_a_module_without_a_skeleton_leaves_the_builders_name_and_the_files_tensors(
    build: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = getattr(torch_modules, build)().state_dict()
    view = image_of(saved(tmp_path, state), module=f"{MODULES}:{build}")
    program = view.program()
    assert program is not None
    why = program.attributes["why"]
    named = {"module": f"{MODULES}:{build}", "origin": "", "why": why}
    assert (program.kind, program.attributes) == ("torch-builder", named)
    assert_equal(tensors_of(view), state)
    assert why.startswith(f"each session builds it by {MODULES}:{build} and loads its weights: the module ")
    assert why in caplog.text


def test_a_module_whose_code_fails_when_it_is_unpickled_has_no_skeleton(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_self: object, _state: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(torch_modules.ConvNet, "__setstate__", refuse, raising=False)
    path = saved(tmp_path, torch_modules.conv_net().state_dict())
    program = image_of(path, module=f"{MODULES}:conv_net").program()
    assert program is not None
    assert program.kind == "torch-builder"


def test_extra_state_is_refused(tmp_path: Path) -> None:
    state = nn.Linear(1, 1).state_dict()
    with pytest.raises(ArtifactError, match="extra state '_extra_state'"):
        image_of(saved(tmp_path, state), module=f"{MODULES}:with_extra_state")


def test_of_many_names_that_do_not_fit_the_first_are_listed_and_the_rest_counted(tmp_path: Path) -> None:
    state = torch_modules.conv_net().state_dict() | {f"more.{number:02}": torch.ones(1) for number in range(25)}
    with pytest.raises(ArtifactError, match=r"missing nothing; unexpected .*'more\.19' and 5 more \(option ignore:"):
        image_of(saved(tmp_path, state), module=f"{MODULES}:conv_net")


def test_a_buffer_outside_the_state_dict_must_have_the_modules_shape_unless_ignored(tmp_path: Path) -> None:
    state = torch_modules.tied_model().state_dict() | {"positions": torch.zeros(4)}
    path = saved(tmp_path, state)
    with pytest.raises(ArtifactError, match="'positions' has another shape or dtype than the module's own buffer"):
        image_of(path, module=f"{MODULES}:tied_model")
    view = image_of(path, module=f"{MODULES}:tied_model", ignore=["pos*"])
    assert torch.equal(tensors_of(view)["positions"], torch.arange(5.0).reshape(5, 1))
