"""The error tree: codes, what may be asked again, and errors that cross a process."""

from __future__ import annotations

import pickle

import pytest

from trims.core.errors import (
    ArtifactNotFoundError,
    BrokenWeightsError,
    CallerError,
    CapacityError,
    DeadlineError,
    InternalError,
    InUseError,
    LostPeerError,
    ModelNotFoundError,
    PermissionDeniedError,
    PredictorError,
    TensorNotFoundError,
    TooLargeError,
    TrimsError,
    error_classes,
    from_code,
    is_system_error,
)

CLASSES = sorted(error_classes().values(), key=lambda cls: cls.code)


def all_classes(root: type[TrimsError] = TrimsError) -> list[type[TrimsError]]:
    """The whole tree. A base whose name begins with an underscore is never raised: it has no code."""
    below = [cls for child in root.__subclasses__() for cls in all_classes(child)]
    return below if root.__name__.startswith("_") else [root, *below]


def test_every_class_has_a_code_of_its_own_and_says_what_is_to_blame() -> None:
    classes = set(all_classes())
    assert {cls.code for cls in classes} == set(error_classes())
    assert len(error_classes()) == len(classes), "two classes share a code"
    for cls in classes:
        assert cls.__doc__
        assert "code" in vars(cls), f"{cls.__name__} inherits its code"


def test_an_unknown_code_is_said_and_not_lost() -> None:
    error = from_code("from_the_future", "something new")
    assert isinstance(error, InternalError)
    assert "something new" in str(error)
    assert "'from_the_future'" in str(error)


def test_a_class_says_whether_asking_again_can_help() -> None:
    again = {code for code, cls in error_classes().items() if cls.retryable}
    lost = {"lost_peer", "daemon_away", "draining", "device_lost", "source_unavailable"}
    assert again == {"in_use", "capacity", "no_space", "quota", "busy", "deadline", "artifact_changed"} | lost
    assert not TooLargeError.retryable
    assert issubclass(TooLargeError, CapacityError)


def test_a_missing_tensor_is_a_key_error_that_reads_as_a_sentence() -> None:
    error = TensorNotFoundError("no tensor 'x'")
    assert isinstance(error, KeyError)
    assert str(error) == "no tensor 'x'"
    assert str(TensorNotFoundError()) == ""


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.code)
def test_an_error_can_be_sent_to_another_process(cls: type[TrimsError]) -> None:
    again = pickle.loads(pickle.dumps(cls("a sentence")))
    assert type(again) is cls
    assert str(again) == "a sentence"


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.code)
def test_a_code_leads_back_to_its_class_with_the_message(cls: type[TrimsError]) -> None:
    error = from_code(cls.code, "culprit and remedy")
    assert type(error) is cls
    assert str(error) == "culprit and remedy"


def test_every_class_belongs_to_exactly_one_of_the_branches_of_culprits() -> None:
    branches = (
        CallerError, InUseError, CapacityError, DeadlineError, LostPeerError, BrokenWeightsError, PredictorError,
        InternalError,
    )  # fmt: skip
    for cls in all_classes():
        assert cls is TrimsError or sum(issubclass(cls, branch) for branch in branches) == 1, cls


@pytest.mark.parametrize(
    ("cls", "known"),
    [
        (ModelNotFoundError, KeyError),
        (TensorNotFoundError, KeyError),
        (PermissionDeniedError, PermissionError),
        (CapacityError, MemoryError),
        (TooLargeError, MemoryError),
        (DeadlineError, TimeoutError),
        (LostPeerError, ConnectionError),
        (ArtifactNotFoundError, FileNotFoundError),
    ],
)
def test_an_error_that_python_has_a_class_for_is_caught_by_that_class(
    cls: type[TrimsError], known: type[Exception]
) -> None:
    with pytest.raises(known, match=r"^a sentence$"):
        raise cls("a sentence")


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.code)
def test_an_error_of_the_tree_is_never_taken_for_one_of_the_system(cls: type[TrimsError]) -> None:
    assert not is_system_error(cls("a sentence"))


def test_a_refusal_of_the_system_is_told_from_all_other_errors() -> None:
    assert is_system_error(OSError(28, "No space left on device"))
    assert is_system_error(FileNotFoundError(2, "No such file or directory"))
    assert not is_system_error(KeyError("x"))
