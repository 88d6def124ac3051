"""The `trims trace` command: one open or one request as a tree of spans, and traces that were recorded before."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims_predictors.cli.run import add_request_options

if TYPE_CHECKING:
    import argparse

    from trims.trace.reader import Summary, Trace
    from trims.trace.tree import Line

_INPUT = "inputs as for trims run: a request is traced; without any, an open of the model's weights"
#: Seconds for processes to write their last spans.
_WRITTEN_S = 3.0
#: Columns of names, at least and at most: layers lie deep in the tree, and longer ones move their line.
_NAME_COLUMNS, _MOST_NAME_COLUMNS = 44, 80
#: Characters of a line that are printed at least: what a failure says may be thousands.
_MOST_COLUMNS = 200
#: Attributes of a request that the tree leaves out: what the caller knows, and what its stages show.
_NOT_SHOWN = ("http.", "rpc.", "url.", "network.", "server.", "client.", "user_agent.", "exception.", "trims.load_")


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    text = "show where the time of one open or request goes, or look at recorded traces"
    trace = commands.add_parser("trace", help=text, description=text)
    trace.add_argument("model", nargs="?", help="a registered model, or with --path a file")
    trace.add_argument("input", nargs="*", help=_INPUT)
    trace.add_argument("--path", action="store_true", help="the model is an artifact's path, as for session.open_file")
    trace.add_argument("--place", default="auto", help="where to open it (default: auto)")
    trace.add_argument("--last", action="store_true", help="show the trace that was recorded last")
    trace.add_argument("--list", action="store_true", help="list the recorded traces, the last one first")
    trace.add_argument("--limit", type=int, metavar="N", help="with --list: the last N only (default: all)")
    trace.add_argument("--id", help="show the trace of this id, or of one that begins so")
    trace.add_argument("--folder", type=Path, help="where traces are (default: the daemon's, below its state folder)")
    trace.add_argument("--least-ms", type=float, default=0.0, help="leave out what is shorter (default: 0)")
    text = "how deep: application, model, framework (layers), library, system, hardware (default: model)"
    trace.add_argument("--level", default="model", help=text)
    text = "write the trace: FILE.pftrace for https://ui.perfetto.dev, FILE.json for Chrome; with --list all traces"
    trace.add_argument("--export", type=Path, metavar="FILE", help=text)
    trace.add_argument("--otlp", action="store_true", help="send the trace where OTEL_EXPORTER_OTLP_ENDPOINT says")
    add_request_options(trace)
    trace.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    from trims.core.errors import CallerError
    from trims.trace.levels import Level

    looks = [name for name in ("last", "list", "id") if getattr(options, name)]
    if len(looks) + (options.model is not None) != 1:
        raise CallerError("name a model to trace, or one of --last, --list and --id to look at what was recorded")
    try:
        level = Level.parse(options.level)
    except ValueError as error:
        raise CallerError(f"--level: {error}") from error
    _check_limit(options)
    folder = options.folder or _folder_of_daemon(options)
    if options.list:
        _list(options, folder)
        return
    found = _recorded(options, folder) if options.model is None else [_traced(options, folder, level)]
    _hand_on(options, found, folder)
    if options.model is not None and level >= Level.FRAMEWORK:
        _note_what_lacks(found[0], has_request=bool(options.input))
    show(found[0], options.least_ms / 1000, as_json=options.json)


def _check_limit(options: argparse.Namespace) -> None:
    from trims.core.errors import CallerError

    if options.limit is None:
        return
    if not options.list or options.export is not None or options.otlp:
        raise CallerError("--limit shortens what --list prints; leave out it, or what exports and sends all traces")
    if options.limit < 1:
        raise CallerError(f"--limit is {options.limit}; it must be at least 1")


def _hand_on(options: argparse.Namespace, traces: list[Trace], folder: Path) -> None:
    if options.export is not None:
        _export(options.export, traces, folder)
    if options.otlp:
        _send(traces)


def _folder_of_daemon(options: argparse.Namespace) -> Path:
    from trims.control import admin
    from trims.core.errors import DaemonAwayError
    from trims.trace.spans import default_folder

    try:
        with admin(options.runtime_dir) as daemon:
            return Path(daemon.status().health.state_dir) / "trace"
    except DaemonAwayError:
        if options.model is not None:
            raise
        return Path(default_folder())  # what was recorded can be read without it


# -- recording ---------------------------------------------------------------------------------------------------------


def _traced(options: argparse.Namespace, folder: Path, level: Any) -> Trace:
    from trims.trace import spans
    from trims.trace.levels import Level

    spans.configure(folder, "command", level=level, everything=True)
    what = "request" if options.input else "open"
    try:
        with spans.span(f"trims trace {options.model}", Level.APPLICATION, what=what) as root:
            if options.input:
                _ask(options)
            else:
                _open(options)
    finally:
        spans.stop()
    context = root.context
    assert context is not None, "everything is recorded"
    return _written(folder, context.trace_id)


def _ask(options: argparse.Namespace) -> None:
    from trims.trace.spans import span

    with span("import"):
        # What `ask` imports takes longer than a warm request.
        import trims_predictors.cli.run_request
        import trims_predictors.endpoint.settings  # noqa: F401
        from trims_predictors.cli.run import ask
        from trims_predictors.cli.run_inputs import RunInputs

    inputs = RunInputs(options.model, options.dtype)
    ask(options, lambda types: inputs.read(options.input, types))


def _open(options: argparse.Namespace) -> None:
    from trims.trace.spans import span

    with span("import"):
        from trims_client import connect

    with span("connect"):
        session = connect(options.runtime_dir, agent="trims trace")
    with session:
        if options.path:
            weights = session.open_file(options.model, place=options.place, deadline_s=options.deadline_s)
        else:
            weights = session.open(options.model, place=options.place, deadline_s=options.deadline_s)
        with span("close"):
            weights.close()


def _written(folder: Path, trace_id: str) -> Trace:
    from trims.core.errors import InternalError
    from trims.trace.reader import wait_for_trace

    found = wait_for_trace(folder, trace_id, _WRITTEN_S)
    if found is None:
        raise InternalError(f"no spans were written to {folder}; see the log for the reason")
    return found


def _note_what_lacks(trace: Trace, *, has_request: bool) -> None:
    """Say why levels below the model that were asked for are not there, or not whole."""
    from trims.cli.output import note
    from trims.trace.profiles import shortcomings

    if not has_request:
        note("an open runs no layers: give inputs to trace a request")
    for each in shortcomings(trace):
        note(each)


# -- looking -----------------------------------------------------------------------------------------------------------


def _recorded(options: argparse.Namespace, folder: Path) -> list[Trace]:
    from trims.core.errors import CallerError
    from trims.trace.reader import list_traces, read_traces

    wanted = options.id or next((each.trace_id for each in list_traces(folder, 1)), "")
    traces = read_traces(folder, wanted) if wanted else []
    if len(traces) > 1:
        raise CallerError(f"{len(traces)} traces begin with {options.id!r}; name more of the id")
    if not traces:
        what = f"no trace {options.id!r}" if options.id else "no trace"
        raise CallerError(f"{what} is recorded in {folder}; record one: trims trace MODEL, or trims serve --trace yes")
    return traces


def _list(options: argparse.Namespace, folder: Path) -> None:
    from trims.core.errors import CallerError
    from trims.trace.reader import list_traces, read_traces

    if options.export is not None or options.otlp:
        traces = read_traces(folder)
        if not traces:
            raise CallerError(f"no trace is recorded in {folder}, so there is nothing to export or send")
        _hand_on(options, traces, folder)
    _print_list(list_traces(folder, options.limit), as_json=options.json)


def _print_list(traces: list[Summary], *, as_json: bool) -> None:
    from trims.cli.output import say, say_json

    if as_json:
        say_json([each.as_json() for each in traces])
        return
    for each in traces:
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each.began_unix_ns / 1e9))
        say(f"{each.trace_id}  {began}  {_time(each.seconds):>10}  {each.spans:5} spans  {each.name}")


def show(trace: Trace, least_s: float, *, as_json: bool) -> None:
    """Print a trace as a tree, or as JSON with a line for each span and unattributed time.

    Args:
        least_s: Shorter spans are left out.
    """
    from trims.cli.output import say, say_json
    from trims.trace.reader import summarize
    from trims.trace.tree import lines

    found = lines(trace, least_s)
    if as_json:
        say_json({**summarize(trace.spans)[trace.trace_id].as_json(), "lines": [_as_json(each) for each in found]})
        return
    say(f"trace {trace.trace_id}")
    most = max(_MOST_COLUMNS, shutil.get_terminal_size().columns)
    longest = max((2 * line.depth + len(line.name) for line in found), default=0)
    columns = max(_NAME_COLUMNS, min(longest, _MOST_NAME_COLUMNS))
    for line in found:
        name = "  " * line.depth + line.name
        took = "unfinished" if line.seconds is None else _time(line.seconds)
        share = "" if line.share is None else f"{line.share:7.1%}"
        text = f"{name:{columns}} {line.role:10} {took:>12} {share}  {_attributes(line)}".rstrip().replace("\n", " ")
        say(text if len(text) <= most else f"{text[: most - 3]}...")


def _as_json(line: Line) -> dict[str, Any]:
    found: dict[str, Any] = {
        "depth": line.depth, "name": line.name, "role": line.role, "begin_s": line.begin_s, "seconds": line.seconds,
        "share": line.share,
    }  # fmt: skip
    if line.span is not None:
        found |= {
            "span_id": line.span.span_id, "parent_id": line.span.parent_id, "level": line.span.level.name.lower(),
            "pid": line.span.process.pid, "attributes": line.span.attributes,
        }  # fmt: skip
    return found


def _attributes(line: Line) -> str:
    from trims.core.units import format_bytes

    if line.span is None:
        return ""
    return " ".join(
        f"{key.removesuffix('_bytes')}={format_bytes(value) if key.endswith('_bytes') else value}"
        for key, value in line.span.attributes.items()
        if not key.startswith(_NOT_SHOWN)
    )


def _time(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds >= 1 else f"{seconds * 1e3:.3f} ms"


# -- exports -----------------------------------------------------------------------------------------------------------


def _export(path: Path, traces: list[Trace], folder: Path) -> None:
    from trims.cli.output import note
    from trims.core.errors import CallerError, NotSupportedError
    from trims.process.packages import install_words
    from trims.trace.export import chrome
    from trims.trace.reader import read_counts

    spans = [span for trace in traces for span in trace.spans]
    begin_ns, end_ns = min(each.start_ns for each in traces), max(each.end_ns for each in traces)
    counts = [each for each in read_counts(folder) if begin_ns <= each.at_ns <= end_ns]
    if path.suffix == ".json":
        with path.open("w", encoding="utf-8") as text:
            chrome.write(text, spans, counts)
    elif path.suffix == ".pftrace":
        try:
            from trims.trace.export import perfetto
        except ImportError as error:
            raise NotSupportedError(f"{error.name} is missing: {install_words('trims[trace]')}") from error
        with path.open("wb") as file:
            perfetto.write(file, spans, counts)
    else:
        raise CallerError(f"--export {path}: the name must end in .pftrace or .json")
    note(f"wrote {len(spans)} spans to {path}")


def _send(traces: list[Trace]) -> None:
    from trims.cli.output import note
    from trims.core.errors import NotSupportedError
    from trims.process.packages import install_words

    try:
        from trims.trace.export import otlp
    except ImportError as error:
        raise NotSupportedError(f"{error.name} is missing: {install_words('trims[otel]')}") from error
    note(f"sent {otlp.export(span for trace in traces for span in trace.spans)} spans")
