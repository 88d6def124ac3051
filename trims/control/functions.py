"""Manifests of functions: `def handler(model, event)` in a file, with a registered model.

The file is parsed and not run: what it lacks is found before any event comes.
"""

from __future__ import annotations

import ast
import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from trims.control.artifacts import check_text, manifest_for, spelled_alike
from trims.control.stated_fields import with_fields
from trims.core.errors import ArtifactNotFoundError, CallerError
from trims.core.functions import FORMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from trims.control.answers import Model

_HANDLER = "handler"
#: Arguments of a handler: the model and the event.
_ARGUMENTS = 2
_FORM = "def handler(model, event)"


def function_manifest(
    file: Path,
    model: Model,
    *,
    form: str | None = None,
    handler: str | None = None,
    name: str | None = None,
    fields: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the manifest of a function, which refers to its model by name.

    Args:
        model: Model that it gets as its first argument.
        form: What it gets the model as, one of `FORMS`; None for the first.
        handler: Name of the function in the file; None for `handler`.
        name: What it is registered as; None for a name made from the file's.
        fields: Others of its manifest; see `stated_fields`.

    Raises:
        ArtifactNotFoundError: There is no such file.
        CallerError: The file has no such function, one that is `async`, or one that takes other arguments; or the form
            is none.
        ManifestError: A field is none of a function's, or has a value that it cannot have.
    """
    form, handler = form or FORMS[0], handler or _HANDLER
    if form not in FORMS:
        raise CallerError(f"--as is {form!r:.80}; a function gets its model as {', '.join(FORMS)}")
    check_text(file)
    check_handler(file, handler)
    made = {
        "name": name or manifest_for(file, None)["name"],
        "artifact": {"model": model.name},
        **_framework(model, form),
        "predictor": {"handler": f"{os.path.abspath(file)}:{handler}", "options": {"as": form}},
    }
    return with_fields(made, fields)


def _framework(model: Model, form: str) -> dict[str, Any]:
    """Return the framework that the function's processes have: the form's, in the version that the model asks for."""
    stated = model.manifest.get("framework")
    stated = stated if isinstance(stated, dict) else {}
    wanted = stated.get("name") if form == FORMS[0] else form
    if not wanted:
        return {}
    version = stated.get("version") if stated.get("name") == wanted else None
    return {"framework": {"name": wanted, **({"version": version} if version else {})}}


def check_handler(file: Path, handler: str) -> None:
    """Raise for a file without a plain function of this name that takes a model and an event.

    Raises ArtifactNotFoundError, CallerError.
    """
    if file.exists() and not file.is_file():  # a pipe would be waited for
        raise CallerError(f"{file} cannot be read: it is no file; name the Python file that has the function")
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except FileNotFoundError as error:
        raise ArtifactNotFoundError(f"{file} does not exist{spelled_alike(file)}") from error
    except OSError as error:
        raise CallerError(f"{file} cannot be read: {error.strerror}") from error
    except (SyntaxError, ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise CallerError(f"{file}{line} is no Python: {getattr(error, 'msg', None) or error}") from error
    found = dict(_names(tree.body))
    if handler not in found:
        functions = [name for name, node in found.items() if isinstance(node, ast.FunctionDef)]
        there = f"it has {', '.join(functions[:8])}: name one (--handler)" if functions else f"write `{_FORM}`"
        raise CallerError(f"{file} has no function {handler!r}; {there}")
    _check_function(f"{file}:{found[handler].lineno}: {handler!r}", found[handler])


def _names(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the names that a module's code defines, the last definition last, also in `if`, `try` and `with`."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name.partition(".")[0], node) for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            inner = (each for target in targets for each in ast.walk(target))
            yield from ((each.id, node) for each in inner if isinstance(each, ast.Name))
        for part in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                yield from _names(getattr(node, part, ()))
        if isinstance(node, ast.Try):
            for each in node.handlers:
                yield from _names(each.body)


def _check_function(where: str, node: ast.stmt) -> None:
    """Raise CallerError for a definition that cannot be called with a model and an event, as far as can be seen."""
    if isinstance(node, ast.AsyncFunctionDef):
        raise CallerError(f"{where} is `async def`; a handler is plain: `{_FORM}`")
    if isinstance(node, ast.ClassDef):
        raise CallerError(f"{where} is a class; a handler is a function: `{_FORM}`")
    if not isinstance(node, ast.FunctionDef) or node.decorator_list:
        return  # what is imported, made, or changed by a decorator, is seen when it runs
    taken = node.args
    places = [*taken.posonlyargs, *taken.args]
    needed = len(places) - len(taken.defaults)
    alone = [each.arg for each, value in zip(taken.kwonlyargs, taken.kw_defaults, strict=True) if value is None]
    if needed > _ARGUMENTS or (len(places) < _ARGUMENTS and taken.vararg is None) or alone:
        names = ", ".join([*(each.arg for each in places), *alone]) or "nothing"
        raise CallerError(f"{where} takes {names}; a handler takes two arguments: `{_FORM}`")
