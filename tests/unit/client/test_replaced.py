"""Functions that stand in the place of others, where modules hold these by value, and their undoing."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from trims_client.transparent import replaced

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A library with a function `load`."""
    made = ModuleType("library")
    exec("def load(path): return path", vars(made))
    monkeypatch.setitem(sys.modules, "library", made)
    return made


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """References that were looked for, a number for each look through the modules."""
    found, holders = list[int](), replaced._holders

    def counted(original: Any, most: int, known: set[int]) -> Any:
        found.append(most)
        return holders(original, most, known)

    monkeypatch.setattr(replaced, "_holders", counted)
    return found


def adapt(library: ModuleType) -> Callable[[], None]:
    """Put an adapter in place as the loaders' adapters do."""
    original = library.load

    @functools.wraps(original)
    def load(path: Any) -> Any:
        return original(path)

    return replaced.replace([(library, "load"), (library, "missing")], original, load)


def holder(name: str, monkeypatch: pytest.MonkeyPatch, **names: object) -> Any:
    made: Any = ModuleType(name)
    vars(made).update(names)
    monkeypatch.setitem(sys.modules, name, made)
    return made


def test_without_another_reference_no_module_is_looked_at(library: ModuleType, looks: list[int]) -> None:
    undo = adapt(library)
    assert hasattr(library.load, "__wrapped__")
    undo()
    assert not hasattr(library.load, "__wrapped__")
    assert looks == []


def test_every_name_of_every_holder_is_replaced_and_put_back(
    library: ModuleType, looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = holder("one", monkeypatch, load=library.load, other=1)
    two = holder("two", monkeypatch, load=None, read=library.load, again=library.load)
    monkeypatch.setitem(sys.modules, "alias", two)
    undo = adapt(library)
    assert looks == [3]
    assert one.load is two.read is two.again is library.load
    assert (one.other, two.load) == (1, None)
    undo()
    assert not hasattr(library.load, "__wrapped__")
    assert one.load is two.read is two.again is library.load


def test_what_was_put_over_an_adapter_meanwhile_stays(library: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    one = holder("one", monkeypatch, load=library.load)
    undo = adapt(library)
    one.load = theirs = print
    undo()
    assert one.load is theirs
    assert not hasattr(library.load, "__wrapped__")


def test_attributes_of_modules_with_code_of_their_own_are_not_read(
    library: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"{name} was read")

    class Odd:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("it was compared")

        __hash__ = None  # type: ignore[assignment]

    monkeypatch.setitem(sys.modules, "lazy", Lazy("lazy"))
    one = holder("one", monkeypatch, odd=Odd(), read=library.load)
    undo = adapt(library)
    assert one.read is library.load
    undo()


def test_a_program_of_many_names_is_looked_at_to_a_bound(library: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    early = holder("early", monkeypatch, load=library.load, read=library.load)
    holder("large", monkeypatch, **{f"name_{number}": number for number in range(replaced._MOST_NAMES)})
    undo = adapt(library)
    assert early.load is library.load, "its own name is looked up everywhere"
    assert early.read is not library.load
    undo()
