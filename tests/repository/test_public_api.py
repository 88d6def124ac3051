"""Names that a user's program may use: each is there, documented, and costs nothing before it is asked for."""

from __future__ import annotations

import importlib.metadata
import pickle
import subprocess
import sys

import pytest

import trims
from trims.cli.main import build_parser, main
from trims.core.errors import TrimsError, error_classes


def test_every_public_name_is_there_and_documented() -> None:
    for name in set(dir(trims)) - {"mxnet", "cupy"}:  # these need an environment of their own, or a device
        assert getattr(trims, name).__doc__, name
    assert set(dir(trims)) - set(trims.__all__) == {"cupy", "evaluate", "mxnet", "onnxruntime", "torch"}


def test_all_names_are_imported_where_no_framework_is_installed() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'onnxruntime', 'mxnet', 'cupy', 'trims_predictors')))\n"
        "from trims import *\n"
        "print(connect.__name__, 'torch' in globals())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["connect", "False"]


def test_an_unknown_name_is_told_with_those_that_there_are() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'nonsense'; it has Loss, Session, "):
        trims.nonsense  # noqa: B018


def test_every_error_class_is_public() -> None:
    assert {getattr(trims.errors, name) for name in trims.errors.__all__} >= set(error_classes().values())
    assert all(issubclass(getattr(trims.errors, name), TrimsError) for name in trims.errors.__all__)
    assert all(cls.__doc__ for cls in error_classes().values())


def test_python_s_own_classes_catch_what_users_expect_them_to_catch() -> None:
    errors = trims.errors
    expected = {
        errors.DeadlineError: TimeoutError,
        errors.LostPeerError: ConnectionError,
        errors.DaemonAwayError: ConnectionError,
        errors.PermissionDeniedError: PermissionError,
        errors.ModelNotFoundError: KeyError,
        errors.TensorNotFoundError: KeyError,
        errors.ArtifactNotFoundError: FileNotFoundError,
        errors.CapacityError: MemoryError,
    }
    assert all(issubclass(ours, theirs) for ours, theirs in expected.items())
    for cls in error_classes().values():
        assert str(cls("what, and the remedy")) == "what, and the remedy"
        assert isinstance(pickle.loads(pickle.dumps(cls("again"))), cls)


def test_a_class_that_differs_from_its_parent_in_retryable_is_named_in_the_docs() -> None:
    for cls in error_classes().values():
        parent = cls.__bases__[0]
        if issubclass(parent, TrimsError) and parent is not TrimsError and parent.retryable != cls.retryable:
            assert cls.__name__ in (trims.errors.__doc__ or "") or cls.__name__ == "ArtifactChangedError"


def test_the_version_is_that_of_the_installed_package() -> None:
    assert trims.__version__ == importlib.metadata.version("trims")


def test_importing_trims_imports_no_framework_and_no_client() -> None:
    code = "import sys, trims; print([m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'trims_client')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_trims_alone_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert printed == build_parser().format_help()


def test_the_help_lists_every_command_once_in_groups_and_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    parser = build_parser()
    lines = parser.format_help().splitlines()
    assert all(len(line) <= 80 for line in lines)
    (commands,) = (action for action in parser._actions if action.dest == "command")
    listed = [line.split()[0] for line in lines if line.startswith("  ") and line[2] not in " -C"]
    assert sorted(listed) == sorted(commands.choices or ())
    assert [line for line in lines if line.endswith(":") and line[0] != " "][-3:] == [
        "models:",
        "the daemon:",
        "tools:",
    ]
