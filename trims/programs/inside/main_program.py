"""The program as its interpreter would run it: `__main__`, `sys.argv`, `sys.path[0]`, tracebacks and the exit status.

What CPython does in C for a script, `-m`, `-c` and standard input is done here. Nothing is imported but what every
interpreter has imported when it starts: a program's folder may have a `random.py` or `queue.py` of its own. What a
program can see of this is one more frame below `__main__`.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

_MAIN = "__main__"


def prepare(arguments: Sequence[str], original: Sequence[str]) -> Callable[[], object]:
    """Set `sys.argv`, `sys.orig_argv`, `sys.path[0]` and `__main__`, and return what runs the program.

    Args:
        arguments: Words from the first that is no flag: a script, `-m MODULE`, `-c CODE` or `-`, with the rest.
        original: The whole command line.

    Raises:
        SyntaxError, OSError: As the program's start would.
    """
    sys.orig_argv[:] = list(original)
    first = arguments[0]
    if first == "-c":
        _begin("", ["-c", *arguments[2:]])
        code = compile(arguments[1], "<string>", "exec", dont_inherit=True)
        return _executed(code, _fresh_main())
    if first == "-m":
        _begin(os.getcwd(), ["-m", *arguments[2:]])
        return _module(arguments[1], alter_argv=True)
    if first == "-":
        _begin("", list(arguments))
        code = compile(_read(0), "<stdin>", "exec", dont_inherit=True)
        return _executed(code, _fresh_main())
    if _is_archive(first):
        _begin(first, list(arguments), always=True)
        return _module(_MAIN, alter_argv=False)
    _begin(os.path.dirname(os.path.realpath(first)), list(arguments))
    return _script(os.path.abspath(first))


def _begin(folder: str, argv: list[str], *, always: bool = False) -> None:
    sys.argv[:] = argv
    if always or not getattr(sys.flags, "safe_path", sys.flags.isolated):
        sys.path.insert(0, folder)


def _is_archive(path: str) -> bool:
    """Return whether an import hook takes the path: a folder or an archive, whose `__main__` is run."""
    for hook in sys.path_hooks:
        try:
            hook(path)
        except ImportError:
            continue
        return True
    return False


def _fresh_main() -> dict[str, Any]:
    """Return the names of a new `__main__`, in the module that there is."""
    import _frozen_importlib

    names = vars(sys.modules[_MAIN])
    names.clear()
    names.update(
        __name__=_MAIN,
        __doc__=None,
        __package__=None,
        __loader__=_frozen_importlib.BuiltinImporter,
        __spec__=None,
        __builtins__=sys.modules["builtins"],
    )
    if sys.version_info < (3, 14):
        names["__annotations__"] = {}
    return names


def _script(path: str) -> Callable[[], object]:
    import _frozen_importlib_external as external

    data = _read(path)
    names = _fresh_main()
    names.update(__file__=path, __cached__=None)
    if path.endswith(".pyc") or data[:4] == external.MAGIC_NUMBER:
        import marshal

        if data[:4] != external.MAGIC_NUMBER:
            raise RuntimeError("Bad magic number in .pyc file")
        names["__loader__"] = external.SourcelessFileLoader(_MAIN, path)
        return _executed(marshal.loads(data[16:]), names)
    names["__loader__"] = external.SourceFileLoader(_MAIN, path)
    return _executed(compile(data, path, "exec", dont_inherit=True), names)


def _executed(code: Any, names: dict[str, Any]) -> Callable[[], object]:
    return lambda: exec(code, names)


def _module(name: str, *, alter_argv: bool) -> Callable[[], object]:
    _fresh_main()
    import runpy

    return lambda: runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined]


def _read(file: str | int) -> bytes:
    with open(file, "rb", closefd=file != 0) as opened:
        return opened.read()


def run(
    arguments: Sequence[str], original: Sequence[str], ending: Callable[[int, bool], None] = lambda *_: None
) -> None:
    """Run the program in this frame; its errors are reported without our frames.

    Args:
        ending: Called with the exit status, and whether SIGINT is what ends the program, before the interpreter ends.

    Raises:
        BaseException: What the program raises.
    """
    try:
        prepare(arguments, original)()
    except SystemExit as error:
        ending(_status(error.code), False)
        _hide_frames()
        raise
    except BaseException as error:
        ending(1, isinstance(error, KeyboardInterrupt))
        _hide_frames()
        raise
    ending(0, False)


def _status(code: object) -> int:
    if code is None:
        return 0
    if not isinstance(code, int):
        return 1
    return code & 0xFF if -sys.maxsize - 1 <= code <= sys.maxsize else 0xFF


def _hide_frames() -> None:
    """Leave our frames out of the traceback that the interpreter is about to print."""
    hook, ours = sys.excepthook, set()
    frame = sys._getframe()
    while frame is not None:
        ours.add(frame.f_code)
        frame = frame.f_back  # type: ignore[assignment]

    def stripped(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        sys.excepthook = hook
        while trace is not None and (trace.tb_frame.f_code in ours or trace.tb_frame.f_globals is globals()):
            trace = trace.tb_next
        error.__traceback__ = sys.last_traceback = trace
        hook(kind, error, trace)

    sys.excepthook = stripped
