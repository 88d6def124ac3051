"""Weights: the read-only mapping from tensor names to views of shared memory.

numpy is imported when a view is asked for, not before; frameworks live in `trims_client.frameworks`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from trims.core.errors import CallerError, ClosedError, NotSupportedError
from trims.core.layout import DTYPE_BYTES
from trims.image.reader import ImageView
from trims.memory.attach import Attachment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Any, NoReturn, Protocol

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Self

    from trims.core.layout import Layout, TensorSpec
    from trims.image.program import Program
    from trims_client.mapping.device import DeviceRegion, DeviceTensor

    class Attached(Protocol):
        """The memory under weights: an Attachment, or a session's share of one."""

        @property
        def data(self) -> memoryview:
            """Return all bytes, read-only."""
            ...

        def private_data(self) -> memoryview:
            """Return all bytes, copy-on-write."""
            ...

        @property
        def region(self) -> DeviceRegion | None:
            """Return the device memory; None on the host."""
            ...

        @property
        def place(self) -> str | None:
            """Return where the memory lies now; None if that does not change, or is not known any more."""
            ...

        @property
        def lost(self) -> str | None:
            """Return why its owner does not have the memory any more; None while the owner has it."""
            ...

        def close(self) -> None:
            """Give the memory back. Idempotent."""
            ...

        def drop(self) -> None:
            """Give the memory back, from a finaliser."""
            ...


#: safetensors dtype -> numpy's name. The names in `_ML_DTYPES` need the ml_dtypes package.
_NUMPY = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "F32": "float32", "F64": "float64", "C64": "complex64",
}  # fmt: skip
_ML_DTYPES = {
    "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
#: Length of the widest element: an address that is a multiple of it is aligned, whatever the dtype.
_WIDEST = 8


class Weights(Mapping[str, "NDArray[Any]"]):
    """The tensors of one attached model, read-only.

    `weights[name]` is a numpy view into shared memory: no bytes are copied, whatever the size. It stays valid as
    long as it is referenced, also after `close`; the lease ends when the last view is gone. Only at the place `file`
    may a tensor lie where no framework can read it, not aligned to its element. It is copied privately when it is
    asked for, once for each `Weights`; `copied_bytes` says how much that was.

    Example:
        with trims.connect() as session, session.open("bert") as weights:
            for name, array in weights.items():
                print(name, array.dtype, array.shape)

    Attributes:
        name: The name or path that the model was opened by.
        shared: Whether these bytes are shared; a private local copy is made only if a fallback was asked for.
        warm: Whether the replica was resident at the open, which therefore waited for no load.
        fell_back: Why the replica does not lie at the preferred place, as `place: reason`; None if it does.
        trusted: Whether programs in the image may be run: the daemon runs as this user or root, and the image was made
            on this machine or its manifest has `allow_pickle: true`.
        foreign: Address of an image that others made, and to whose code the manifest does not consent; else empty.
    """

    def __reduce__(self) -> NoReturn:
        """Raise NotSupportedError, for `pickle` and `copy`."""
        raise NotSupportedError(
            f"weights are mapped in one process: open {self.name!r} by its name in the other one; "
            "numpy.array(weights[name]) is a copy of a tensor"
        )

    def __init__(
        self,
        name: str,
        attachment: Attached,
        *,
        place: str = "cpu",
        shared: bool = True,
        warm: bool = False,
        trusted: bool = False,
        foreign: str = "",
        on_close: Callable[[], None] | None = None,
        on_report: Callable[[int], None] | None = None,
    ) -> None:
        self.name = name
        self._place = place
        self.shared = shared
        self.warm = warm
        self.trusted = trusted
        self.foreign = foreign
        self._attachment = attachment
        self._on_close = on_close
        self._on_report = on_report
        self.fell_back: str | None = None
        #: Private copies by offset and length of tensors that are not aligned to their elements.
        self._copies: dict[tuple[int, int], bytes] = {}
        try:
            self._view: ImageView | None = ImageView(attachment.data)
        except BaseException:
            attachment.close()
            raise

    @classmethod
    def map_file(cls, path: str | os.PathLike[str], on_release: Callable[[], None] | None = None) -> Weights:
        """Map an image file directly, without a daemon. Raises ImageError if it is not an image."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return cls(os.fspath(path), Attachment(fd, os.fstat(fd).st_size, on_release), place="disk", shared=False)
        finally:
            os.close(fd)

    @property
    def view(self) -> ImageView:
        """Return the image itself. Raises ClosedError after `close`."""
        if self._view is None:
            raise ClosedError(f"the weights of {self.name!r} are closed; open the model again to read them")
        return self._view

    @property
    def layout(self) -> Layout:
        """Return names, dtypes, shapes and offsets of the tensors."""
        return self.view.layout

    @property
    def nbytes(self) -> int:
        """Return the length of the image in bytes."""
        return self.view.nbytes

    @property
    def metadata(self) -> Mapping[str, str]:
        """Return the metadata strings of the artifact."""
        return self.view.metadata

    @property
    def closed(self) -> bool:
        """Return whether `close` was called."""
        return self._view is None

    def program(self) -> Program | None:
        """Return the graph without weights, if the model has one."""
        return self.view.program()

    @property
    def place(self) -> str:
        """Return the place of the replica: `cpu`, `disk`, `file`, or `gpu:N`, whose tensors `on_device` gives.

        Weights that were opened without a place may move from `disk` to `cpu` while they are open (see `connect`).
        """
        moved = self._attachment.place
        if moved is not None:
            self._place = moved
        return self._place

    @property
    def device(self) -> str | None:
        """Return the UUID of the GPU the tensors lie on; None on the host."""
        region = self._attachment.region
        return None if region is None else region.device

    def on_device(self, name: str) -> DeviceTensor:
        """Return one tensor in device memory, for DLPack or `__cuda_array_interface__`; no bytes are copied.

        Raises TensorNotFoundError; NotSupportedError if the model lies on the host.
        """
        return self._device_tensor(self.view.spec(name))

    def device_data(self) -> DeviceTensor:
        """Return the whole data block in device memory, as one `U8` tensor. `layout` has the tensors' offsets in it.

        Raises NotSupportedError if the model lies on the host.
        """
        from trims.core.layout import TensorSpec

        view = self.view
        return self._device_tensor(TensorSpec("", "U8", (view.nbytes - view.data_start,), 0))

    def _device_tensor(self, spec: TensorSpec) -> DeviceTensor:
        from trims_client.mapping.device import DeviceTensor

        region = self._attachment.region
        if region is None:
            raise NotSupportedError(f"{self.name!r} lies at {self.place}; open it with place='gpu'")
        return DeviceTensor(region, spec, self.view.data_start)

    @property
    def lost(self) -> str | None:
        """Return why the memory behind these weights has no owner any more; None while it has one, and after `close`.

        The keeper of a device has died, and the lease has ended with it. If the memory was shared by `vmm`, the bytes
        stay readable for as long as these weights and their tensors live. If it was shared by `ipc`, reading them is
        undefined: CUDA says nothing about memory whose owner is dead. Open the model again to get new memory. This
        property is set within about a second, even if the process makes no requests.
        """
        return self._attachment.lost

    def report_workspace(self, nbytes: int) -> None:
        """Report how much device memory this process needs beside the weights, so that the daemon keeps that free.

        Args:
            nbytes: The peak of activations, workspaces and caches at once, in bytes.

        Raises CallerError; NotSupportedError if the model lies on the host or came from no daemon; LostPeerError.
        """
        if type(nbytes) is not int or not 0 <= nbytes < 1 << 53:
            raise CallerError(f"workspace is a number of bytes from 0 to 2^53, not {nbytes!r}")
        if self._attachment.region is None or self._on_report is None:
            raise NotSupportedError(f"{self.name!r} lies at {self.place}; room is kept free on devices only")
        self._on_report(nbytes)

    def raw(self, name: str) -> memoryview:
        """Return the bytes of one tensor. Raises TensorNotFoundError; NotSupportedError for a model on a device."""
        self._on_host()
        return self.view.tensor(name)

    def aligned(self, name: str) -> memoryview:
        """Return the bytes of one tensor, read-only, at an address that is a multiple of its element's length.

        They are those of the mapping, or a private copy if the tensor is not aligned in the artifact's own file.
        Raises TensorNotFoundError; NotSupportedError if the model lies on a device.
        """
        spec, found = self.view.spec(name), self.raw(name)
        if spec.offset % DTYPE_BYTES[spec.dtype] == 0:
            return found
        place = (spec.offset, len(found))
        copy = self._copies.get(place)
        if copy is None:
            copy = self._copies.setdefault(place, bytes(found))  # another thread may have been faster
        return memoryview(copy)

    @property
    def copied_bytes(self) -> int:
        """Return the bytes of private copies made so far, of tensors not aligned in the artifact's own file."""
        return sum(map(len, list(self._copies.values())))

    def private_raw(self, name: str) -> memoryview:
        """Return the bytes of one tensor in a copy-on-write mapping: a write changes the private copy only."""
        self._on_host()
        spec, start = self.view.spec(name), self.view.data_start
        return self._attachment.private_data()[start + spec.offset : start + spec.end]

    def data(self, *, private: bool = False) -> memoryview:
        """Return the whole data block, for the offsets in `layout`: read-only, or copy-on-write if private."""
        self._on_host()
        view = self.view
        return (self._attachment.private_data() if private else self._attachment.data)[view.data_start :]

    def numpy(self, name: str) -> NDArray[Any]:
        """Return a read-only numpy view of one tensor.

        Returns:
            An array of the tensor's shape and dtype over shared memory. bfloat16 and float8 have the dtypes of
            ml_dtypes, which is installed with trims. Where that package is missing, this raises NotSupportedError, and
            `raw(name)` still gives the bytes. Of a tensor that is not aligned to its element: over `aligned(name)`.
        """
        import numpy as np

        spec = self.view.spec(name)
        # Whatever was laid out for an image lies at multiples of 64, which costs less to find out.
        data = self.aligned(name) if spec.offset & _WIDEST - 1 else self.raw(name)
        return np.frombuffer(data, dtype=numpy_dtype(spec.dtype)).reshape(spec.shape)

    def _on_host(self) -> None:
        """Refuse a model on a device: only its head is mapped, in which all tensors read as zeros."""
        if self._attachment.region is not None:
            raise NotSupportedError(
                f"{self.name!r} lies at {self.place}: take on_device(name) to cupy or PyTorch, use "
                f"trims_client.frameworks, or open it with place='cpu'"
            )

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.numpy(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.tensors)

    def __len__(self) -> int:
        return self.view.index_header.tensors

    def __contains__(self, name: object) -> bool:
        return name in self.layout.tensors

    def __repr__(self) -> str:
        from trims.core.units import format_bytes

        state = "closed" if self.closed else f"{len(self)} tensors, {format_bytes(self.nbytes)}"
        return f"<Weights {self.name!r} at {self.place}: {state}>"

    def close(self) -> None:
        """Close the weights. Views that are still referenced stay readable and keep the lease. Idempotent."""
        self._view = None
        self._copies = {}
        self._attachment.close()
        if self._on_close is not None:
            self._on_close()

    def __del__(self) -> None:
        if getattr(self, "_view", None) is not None:
            self._view = None
            self._attachment.drop()
            warn_unclosed(f"the weights of {self.name!r} were never closed; use `with` or call close()", self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def warn_unclosed(message: str, source: object) -> None:
    """Issue a ResourceWarning, as Python gives one for files: shown with `python -X dev` or `-W default`."""
    try:
        import warnings
    except ImportError:  # the interpreter is ending
        return
    warnings.warn(message, ResourceWarning, stacklevel=3, source=source)


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """Return numpy's dtype for a safetensors name. Raises NotSupportedError if ml_dtypes is needed and missing."""
    import numpy as np

    if dtype in _NUMPY:
        return np.dtype(_NUMPY[dtype])
    try:
        import ml_dtypes
    except ImportError:
        raise NotSupportedError(f"numpy has no {dtype}; install ml_dtypes, or read the bytes with raw(name)") from None
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_DTYPES[dtype]))
    return found
