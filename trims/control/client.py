"""Client of a daemon's control door in Python: what the `trims` command does, blocking or with asyncio."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import replace as replaced
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import grpc

from trims.control import orders
from trims.control.answers import (
    Aliases,
    Change,
    Evicted,
    Health,
    Loading,
    Model,
    ModelChange,
    Pruned,
    Replica,
    Report,
    Residents,
    Stats,
    Status,
    TensorInfo,
    Transfer,
    read,
)
from trims.core.errors import InUseError, LostPeerError, TrimsError
from trims.wire import trims_pb2 as pb
from trims.wire import trims_pb2_grpc
from trims.wire.status import error_from

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from trims.control.registration import Source

_NOTHING = pb.Empty()
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
#: A daemon that was away, for however long, is found again within a second: gRPC would wait for up to two minutes.
_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)
#: Loads that are begun at most, if the model is evicted between its load and the answer.
_TRIES = 5


class _Door:
    """A control door, and its errors as errors of the tree."""

    def __init__(self, runtime_dir: str | os.PathLike[str] | None) -> None:
        self._address = orders.control_socket(runtime_dir)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            raise error_from(error, str(self._address)) from error


def _stated(**options: str | bool | None) -> dict[str, str | bool]:
    """Return the options that a caller has set."""
    return {name: value for name, value in options.items() if value not in (None, False)}


class AsyncAdmin(_Door):
    """A client of a daemon's control door for asyncio. Use it in one event loop, with `async with`.

    Every method raises DaemonAwayError if no daemon answers, and what is listed with it.

    Args:
        runtime_dir: Folder of the daemon's sockets; None for `$TRIMS_RUNTIME_DIR` or the default of this user.
    """

    def __init__(self, runtime_dir: str | os.PathLike[str] | None = None) -> None:
        super().__init__(runtime_dir)
        self._channel: Any = grpc.aio.insecure_channel(f"unix:{self._address}", _OPTIONS)
        self._stub: Any = trims_pb2_grpc.ControlStub(self._channel)  # type: ignore[no-untyped-call] # generated code

    async def add(
        self,
        source: Source,
        *,
        name: str | None = None,
        replace: bool = False,
        lazy: bool = False,
        state_key: str | None = None,
        task: str | None = None,
        trust_remote_code: bool = False,
        fields: Mapping[str, Any] | None = None,
        prove: bool = False,
        on_progress: Callable[[Loading], None] | None = None,
    ) -> Model:
        """Register a model and convert it, so that its image lies on disk.

        A manifest with another `version` is registered beside those of its name. The plain name goes on leading to
        what it led to: `alias` switches it.

        Args:
            source: A manifest (a .yaml file, or a mapping), an artifact, or the folder of a Hugging Face model.
            name: Name for an artifact; by default made from its file or folder.
            replace: Replace another manifest of the same version; if that is not registered, the one that the plain
                name leads to.
            lazy: Do not convert now; the first load will.
            state_key: Key of the state dict in a torch checkpoint, with dots between keys.
            task: Task of the folder of a Hugging Face model (`trims.manifests.tasks`), if it is not what the
                architecture says.
            trust_remote_code: Run Python files of such a folder, if its `config.json` names some.
            fields: Further fields of the manifest of an artifact or a folder, such as `{"version": "2", "predictor":
                {"deadline_s": 10}}`. A manifest has its own.
            prove: Hash also files of an address that lay in a hub's cache already, before they are served; not with
                `lazy`.
            on_progress: Called now and then while it is converted.

        Raises:
            CallerError, ManifestError, ModelExistsError; ArtifactError, ConversionError or CapacityError if it cannot
            be converted: then a name that is new is forgotten again, and one that was known keeps its manifest. While
            readers still have the image of a name that was removed, the model is registered as with `lazy`.
        """
        from trims.control import registration

        options = _stated(state_key=state_key, task=task, trust_remote_code=trust_remote_code)
        # It looks into files, which may lie on a disk that hangs.
        request = await self._in_thread(
            partial(registration.register, source, name, replace=replace, options=options, fields=fields)
        )
        registration.check_proof(request, prove=prove, lazy=lazy)
        before = await self.models(registration.name_in(request))
        with self._errors():
            made = await self._stub.Register(request)
        if not lazy:
            try:
                if registration.is_fetched(request):
                    reference = made.reference or made.name
                    await self.pull(reference, prove=prove, forget=not before, on_progress=on_progress)
                else:
                    await self.load(made.reference or made.name, "disk", on_progress=on_progress)
            except InUseError:
                pass  # the image of its last registration is read and on its way out: the next load converts it
            except BaseException:
                if before or not registration.is_fetched(request):  # else the daemon forgets it
                    await self._take_back(made, before, replaced=replace)
                raise
        return replaced(await self.show(made.reference or made.name), unconfirmed=tuple(made.unconfirmed))

    async def _take_back(self, made: Any, before: Sequence[Model], *, replaced: bool) -> None:
        from trims.control import registration

        old = registration.replaced_by(made, before, replaced=replaced)
        if old is not None:
            with self._errors():
                await self._stub.Register(registration.register_again(old))
        elif not replaced:  # else what it replaced is not known
            await self.remove(made.reference or made.name)

    async def remove(self, name: str, *, all_versions: bool = False) -> tuple[str, ...]:
        """Forget a version of a model; its image goes once no lease holds it and no other name stands for it.

        Return the endpoints that may still answer under the name; see `Aliases.unconfirmed`.

        Args:
            name: `name@version`; or a plain name, which forgets a model that has one version.
            all_versions: Forget the model with all its versions and aliases.

        Raises:
            ModelNotFoundError: There is no such version.
            InUseError: An alias leads to it and there are others, or a plain name has several versions.
        """
        with self._errors():
            request = orders.message(pb.UnregisterRequest, name=name, all_versions=all_versions)
            return tuple((await self._stub.Unregister(request)).unconfirmed)

    async def alias(self, name: str, version: str = "", *, back: bool = False, remove: bool = False) -> Aliases:
        """Show or switch what a name leads to, at once for all new opens. Leases keep what they have.

        A switch is answered when all endpoints of the daemon act on it, or after two seconds: the answer names those
        that do not.

        Args:
            name: Name of a model, or `name@label`: a label is made if it is not there.
            version: Version to lead to from now on. Without it, and the others, nothing is switched.
            back: Lead to what it led to before its last switch.
            remove: Remove the label.

        Returns:
            What the model has then.

        Raises:
            ModelNotFoundError: There is no such model, version or label.
            CallerError: The label is called as a version; there is nothing to switch back to; a plain name is removed.
            NotSupportedError: The daemon is older, or its registry keeps one version of each model.
        """
        request = orders.message(pb.AliasRequest, name=name, version=version, back=back, remove=remove)
        with self._errors():
            return read(Aliases, await self._stub.Alias(request))

    async def models(self, name: str = "") -> list[Model]:
        """Return all registered versions of all models, or of one; of each the one that its plain name leads to first.

        Args:
            name: Name of the one model; there are no versions of a model that is not registered.
        """
        with self._errors():
            listed = (await self._stub.List(orders.message(pb.ListRequest, name=name))).models
            return [read(Model, each) for each in listed if not name or each.name == name]

    async def show(self, name: str, *, look: bool = False) -> Model:
        """Return everything about one model. Raises ModelNotFoundError.

        With `look` the daemon looks at the files and headers of its artifact, and ArtifactError says why no open of it
        can succeed.
        """
        with self._errors():
            return read(Model, await self._stub.Describe(orders.message(pb.NameRequest, name=name, look=look)))

    async def learn(self, name: str, key: str, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> None:
        """Have the daemon keep what a run of a model had, if its image's graph does not state inputs and outputs.

        Args:
            name: A registered model.
            key: Key of the image that ran. Nothing is kept if the name stands for another one by now.

        Raises ModelNotFoundError, CallerError.
        """
        with self._errors():
            await self._stub.Learn(orders.learn(name, key, inputs, outputs))

    async def load(
        self,
        name: str,
        place: str | None = None,
        *,
        deadline_s: float | None = None,
        on_progress: Callable[[Loading], None] | None = None,
    ) -> Replica:
        """Have a model loaded before it is needed, and wait for it.

        Args:
            name: A registered model.
            place: `cpu`, `disk` or `gpu:N`; None for what its manifest says.
            deadline_s: Seconds to wait for the load and for room; None waits for a load, but not for leases to end.
            on_progress: Called several times a second.

        Raises:
            ModelNotFoundError, ArtifactError, ConversionError, CapacityError, DeadlineError.
        """
        for _ in range(_TRIES):
            with self._errors():
                async for message in self._stub.Load(orders.load(name, place, deadline_s)):
                    progress = read(Loading, message)
                    if on_progress is not None:
                        on_progress(progress)
                    if progress.replica is not None:
                        return progress.replica
        raise _never_there(name)

    async def pull(
        self,
        name: str,
        *,
        update: bool = False,
        prove: bool = False,
        forget: bool = False,
        on_progress: Callable[[Loading], None] | None = None,
    ) -> Loading:
        """Fetch what lies at the address of a model's manifest, and make it ready to be opened.

        Args:
            name: A registered model whose manifest names an address.
            update: Take what lies there now, also if it was something else when it was first seen.
            prove: Hash also the files that lay in a hub's cache already, before they are served.
            forget: Whether the model was registered for this pull: the daemon forgets it again if the pull fails, or
                its client goes, unless another one asks for it.
            on_progress: Called several times a second.

        Returns:
            The last message; its note says what was found.

        Raises:
            DigestMismatchError: Something else lies there than when it was first seen, without `update`.
            SourceUnavailableError, SourceRefusedError, ArtifactNotFoundError, AddressRefusedError, NoSpaceError.
        """
        request = orders.message(pb.PullRequest, name=name, update=update, prove=prove, forget=forget)
        with self._errors():
            return await _last(self._stub.Pull(request), name, on_progress)

    async def push(
        self,
        name: str,
        address: str,
        *,
        replace: bool = False,
        on_progress: Callable[[Loading], None] | None = None,
    ) -> Loading:
        """Write a model's image to an address (s3://, gs:// or az://), so that other machines can pull it.

        Args:
            name: A registered model.
            address: Where to. A new version of the same model takes the place of the one that lies there.
            replace: Take the place of another model as well.
            on_progress: Called with each message.

        Returns:
            The last message; its note says what was written.

        Raises ModelExistsError where another model lies, ModelNotFoundError, SourceRefusedError,
        SourceUnavailableError, and what `load` raises.
        """
        request = orders.message(pb.PushRequest, name=name, address=address, replace=replace)
        with self._errors():
            return await _last(self._stub.Push(request), name, on_progress)

    async def transfers(self) -> list[Transfer]:
        """Return the transfers that run."""
        with self._errors():
            return [read(Transfer, each) for each in (await self._stub.Transfers(_NOTHING)).transfers]

    async def prune(self, *, dry_run: bool = False) -> Pruned:
        """Remove downloads that no registered model has; with `dry_run` only return what would be removed.

        Nothing in the hub's cache is removed.
        """
        with self._errors():
            return read(Pruned, await self._stub.Prune(orders.message(pb.PruneRequest, dry_run=dry_run)))

    async def evict(self, name: str, place: str | None = "cpu", *, drain: bool = False) -> Evicted:
        """Free a model's memory at a place, or everywhere; it stays registered.

        Args:
            name: A registered model, an absolute path, or the beginning of an image key.
            place: Place to free; None for all places, the image on disk included.
            drain: Let leases run out first.

        Raises:
            InUseError: The image is leased or pinned, and `drain` was not asked for.
            ModelNotFoundError: Nothing has this name.
        """
        with self._errors():
            return read(
                Evicted,
                await self._stub.Evict(orders.evict(name, place, drain=drain)),
            )

    async def pin(self, name: str, place: str = "cpu") -> None:
        """Never evict a model from a place. Does not load it. Raises ModelNotFoundError, NotSupportedError."""
        with self._errors():
            await self._stub.Pin(orders.message(pb.PinRequest, name=name, place=place))

    async def unpin(self, name: str, place: str = "cpu") -> None:
        """Take a pin back."""
        with self._errors():
            await self._stub.Unpin(orders.message(pb.PinRequest, name=name, place=place))

    async def residents(self) -> Residents:
        """Return what is where, held by which process, until when; and the GPUs."""
        with self._errors():
            return read(Residents, await self._stub.Resident(_NOTHING))

    async def watch(self) -> AsyncGenerator[Change, None]:
        """Yield changes of state: all from the return of this call on. Close the generator to end it."""
        with self._errors():
            call = self._stub.Watch(_NOTHING)
            await call.initial_metadata()
        return self._changes(call)

    async def _changes(self, call: Any) -> AsyncGenerator[Change, None]:
        with self._errors():
            try:
                async for message in call:
                    yield read(Change, message)
            finally:
                call.cancel()

    async def confirm_models(self, change: ModelChange) -> None:
        """Confirm that the caller acts on a change that `watch_models` gave under a name."""
        request = orders.message(pb.ConfirmModelsRequest, watch=change.watch, sequence=change.sequence)
        with self._errors():
            await self._stub.ConfirmModels(request)

    async def watch_models(self, watcher: str = "") -> AsyncGenerator[ModelChange, None]:
        """Yield names of models that changed: first an empty change at once, then all from then on.

        Args:
            watcher: A name under which the caller confirms each change once it acts on it (`confirm_models`): orders
                that change models wait for that. Empty for a caller that confirms nothing.

        Close the generator to end it. Raises NotSupportedError at the first change if the daemon is older than this.
        """
        call = self._stub.WatchModels(orders.message(pb.WatchModelsRequest, watcher=watcher))
        with self._errors():
            try:
                async for message in call:
                    yield read(ModelChange, message)
            finally:
                call.cancel()

    async def status(self) -> Status:
        """Return which daemon answers, and how full it is."""
        with self._errors():
            health, stats = await self._stub.Health(_NOTHING), await self._stub.Stats(_NOTHING)
            return Status(read(Health, health), read(Stats, stats))

    async def check(self, *, verify: bool = False) -> Report:
        """Check the daemon's ledger against the facts; with `verify`, read and hash every replica."""
        with self._errors():
            return read(Report, await self._stub.Check(orders.message(pb.CheckRequest, verify=verify)))

    async def drain(self) -> None:
        """Have the daemon take no new opens; leases run on."""
        with self._errors():
            await self._stub.Drain(_NOTHING)

    async def shutdown(self, *, purge: bool = False) -> None:
        """End the daemon. Models stay in memory for the next one, unless `purge`."""
        with self._errors():
            await self._stub.Shutdown(orders.message(pb.ShutdownRequest, purge=purge))

    @staticmethod
    async def _in_thread(work: Callable[[], _Result]) -> _Result:
        return await asyncio.to_thread(work)

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        await self._channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Ready:
    """Answer of a stub that blocks, for code that awaits it: nothing waits any more.

    Args:
        found: A message, or a stream of messages.
    """

    def __init__(self, found: Any) -> None:
        self._found = found

    def __await__(self) -> Generator[Any, None, Any]:
        return self._found
        yield  # which makes it a generator

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        for message in self._found:
            return message
        raise StopAsyncIteration

    def initial_metadata(self) -> _Ready:
        """See `grpc.aio.Call`."""
        return _Ready(self._found.initial_metadata())

    def cancel(self) -> None:
        """See `grpc.aio.Call`."""
        self._found.cancel()


class _BlockingStub:
    """Stub whose methods block, for code that awaits them."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub

    def __getattr__(self, method: str) -> Callable[[Any], _Ready]:
        return lambda request: _Ready(getattr(self._stub, method)(request))


class _BlockingCalls(AsyncAdmin):
    """The calls of `AsyncAdmin` over a stub that blocks: none of their coroutines waits for anything."""

    def __init__(self, runtime_dir: str | os.PathLike[str] | None = None) -> None:
        _Door.__init__(self, runtime_dir)
        self._channel = grpc.insecure_channel(f"unix:{self._address}", _OPTIONS)
        self._stub = _BlockingStub(trims_pb2_grpc.ControlStub(self._channel))  # type: ignore[no-untyped-call] # generated

    @staticmethod
    async def _in_thread(work: Callable[[], _Result]) -> _Result:
        return work()

    async def close(self) -> None:
        """See `Admin.close`."""
        self._channel.close()


def _finish(call: Coroutine[Any, Any, _Result]) -> _Result:
    """Return the result of a coroutine that waits for nothing."""
    try:
        call.send(None)
    except StopIteration as end:
        result: _Result = end.value
        return result
    call.close()
    raise AssertionError("a blocking call waited for an event loop")


def _blocking(
    method: Callable[Concatenate[AsyncAdmin, _Given], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate[Admin, _Given], _Result]:
    """Return the method of `Admin` that blocks where this one of `AsyncAdmin` is awaited."""

    def call(self: Admin, /, *given: _Given.args, **named: _Given.kwargs) -> _Result:
        coroutine: Coroutine[Any, Any, _Result] = getattr(self._calls, method.__name__)(*given, **named)
        return _finish(coroutine)

    update_wrapper(call, method)
    return call


def _each(changes: AsyncGenerator[_Result, None]) -> Generator[_Result, None, None]:
    """Yield what an asynchronous generator over a stub that blocks yields."""
    try:
        while True:
            try:
                yield _finish(changes.__anext__())
            except StopAsyncIteration:
                return
    finally:
        _finish(changes.aclose())


class Admin:
    """A client of a daemon's control door. A context manager; safe to use from several threads.

    Every method raises DaemonAwayError if no daemon answers, and what is listed with it. Each is the method of
    `AsyncAdmin` with the same name, and blocks.

    Args:
        runtime_dir: Folder of the daemon's sockets; None for `$TRIMS_RUNTIME_DIR` or the default of this user.
    """

    def __init__(self, runtime_dir: str | os.PathLike[str] | None = None) -> None:
        self._calls = _BlockingCalls(runtime_dir)

    add = _blocking(AsyncAdmin.add)
    remove = _blocking(AsyncAdmin.remove)
    alias = _blocking(AsyncAdmin.alias)
    models = _blocking(AsyncAdmin.models)
    show = _blocking(AsyncAdmin.show)
    learn = _blocking(AsyncAdmin.learn)
    load = _blocking(AsyncAdmin.load)
    pull = _blocking(AsyncAdmin.pull)
    push = _blocking(AsyncAdmin.push)
    transfers = _blocking(AsyncAdmin.transfers)
    prune = _blocking(AsyncAdmin.prune)
    evict = _blocking(AsyncAdmin.evict)
    pin = _blocking(AsyncAdmin.pin)
    unpin = _blocking(AsyncAdmin.unpin)
    residents = _blocking(AsyncAdmin.residents)
    confirm_models = _blocking(AsyncAdmin.confirm_models)
    status = _blocking(AsyncAdmin.status)
    check = _blocking(AsyncAdmin.check)
    drain = _blocking(AsyncAdmin.drain)
    shutdown = _blocking(AsyncAdmin.shutdown)
    close = _blocking(AsyncAdmin.close)

    def watch(self) -> Generator[Change, None, None]:
        """Yield changes of state: all from the return of this call on. Close the generator to end it."""
        return _each(_finish(self._calls.watch()))

    def watch_models(self, watcher: str = "") -> Generator[ModelChange, None, None]:
        """Yield names of models that changed; see `AsyncAdmin.watch_models`. Close the generator to end it."""
        return _each(self._calls.watch_models(watcher))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _never_there(name: str) -> TrimsError:
    return InUseError(f"{name} was loaded {_TRIES} times, and each time evicted before its load was answered; pin it")


def admin(runtime_dir: str | os.PathLike[str] | None = None) -> Admin:
    """Return a client of the control door of this machine's daemon; see `Admin`.

    Example:
        with trims.admin() as daemon:
            print(daemon.status().health.status)
            for model in daemon.models():
                print(model.name)
    """
    return Admin(runtime_dir)


def aadmin(runtime_dir: str | os.PathLike[str] | None = None) -> AsyncAdmin:
    """Return a client of the control door for asyncio; see `AsyncAdmin`.

    Example:
        async def report() -> None:
            async with trims.aadmin() as daemon:
                print((await daemon.status()).health.status)

        asyncio.run(report())
    """
    return AsyncAdmin(runtime_dir)


async def _last(messages: Any, name: str, on_progress: Callable[[Loading], None] | None) -> Loading:
    """Return the last message of a transfer. Raises LostPeerError if the daemon ended before."""
    try:
        async for message in messages:
            progress = read(Loading, message)
            if on_progress is not None:
                on_progress(progress)
            if progress.done:
                return progress
    except BaseException:
        messages.cancel()  # of a client that is interrupted nothing goes on
        raise
    raise LostPeerError(f"the daemon ended before the transfer of {name} did; what has come is kept")
