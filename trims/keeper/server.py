"""A keeper's door: a Unix socket on which the daemon sends orders, one frame each, with a thread for each connection.

A lost device ends the keeper, so that the daemon notices the loss. The next keeper finds out whether the device is
back.

An image that is not sealed is freed with the connection that made it, so a daemon that dies in the middle of a fill
leaves nothing behind. Sealed images stay, and the next daemon finds them with `hello`.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

from trims.core.errors import (
    BadMessageError,
    CallerError,
    DeviceLostError,
    InternalError,
    PermissionDeniedError,
    TrimsError,
)
from trims.keeper.messages import (
    Copy,
    Create,
    Digest,
    End,
    Export,
    Fill,
    Free,
    Hello,
    Order,
    Read,
    Room,
    Seal,
    Verify,
    parse_order,
)
from trims.memory.cuda.drivers import export_message, export_of
from trims.trace.spans import continued, span
from trims.wire.answers import error_message
from trims.wire.frames import Decoder, Message, encode
from trims.wire.peer import Peer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trims.keeper.keeper import Keeper

log = logging.getLogger(__name__)
PROTOCOL = 1
_READ_BYTES = 64 << 10
_MOST_FDS = 4
_TICK_S = 1.0


class KeeperServer:
    """Serves one keeper until the order `end`.

    Args:
        path: The socket. Raises CallerError if another keeper serves there.
    """

    def __init__(self, keeper: Keeper, path: Path) -> None:
        self._keeper = keeper
        self._path = path
        self._ending = threading.Event()
        self._lost = False
        self._connections: set[socket.socket] = set()
        self._lock_fd = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock_fd)
            raise CallerError(f"another keeper serves at {path}") from None
        self._folder_fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(BlockingIOError):  # programs that remove old files leave a locked folder alone
            fcntl.flock(self._folder_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def serve(self) -> bool:
        """Serve until `end`, or until the device is lost; then free everything.

        Returns whether everything was freed. If not, threads may hang in the driver, and the process must exit without
        waiting for them.
        """
        self._path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(self._path))
            self._path.chmod(0o600)
            inode = self._path.stat().st_ino  # before a client can connect, and remove it
            listener.listen()
            listener.settimeout(_TICK_S)
            while not self._ending.is_set():
                self._admit(listener)
                self._rest()
                if not self._connections and not self._is_there(inode):
                    log.warning("%s was removed: no daemon can reach this keeper, so it ends", self._path)
                    break
        if self._is_there(inode):
            self._path.unlink(missing_ok=True)
        freed = self._free_all()
        self._hang_up()
        for fd in (self._lock_fd, self._folder_fd):
            os.close(fd)
        return freed

    def _admit(self, listener: socket.socket) -> None:
        """Serve the next connection, if one comes within `_TICK_S`. A lack of descriptors must not end the keeper."""
        try:
            sock, _ = listener.accept()
        except TimeoutError:
            return
        except OSError as error:
            log.error("no connection can be accepted: %s", error)  # noqa: TRY400 - the cause is all there is
            self._ending.wait(_TICK_S)
            return
        if self._ending.is_set():
            sock.close()
            return
        self._connections.add(sock)
        try:
            threading.Thread(target=self._serve_one, args=(sock,), daemon=True).start()
        except RuntimeError as error:
            log.error("a connection cannot be served: %s", error)  # noqa: TRY400 - the cause is all there is
            self._connections.discard(sock)
            sock.close()

    def _rest(self) -> None:
        try:
            self._keeper.rest()
        except DeviceLostError:
            self.device_lost()
        except Exception:
            log.exception("the context was not given back; the keeper tries again")

    def _free_all(self) -> bool:
        if self._lost:  # the memory is gone, and every call would fail
            return False
        try:
            return self._keeper.close()
        except TrimsError:
            log.exception("not all images were freed; the rest ends with this process")
            return False

    def _hang_up(self) -> None:
        """End all connections. Answers that were sent before still arrive."""
        for sock in list(self._connections):
            with contextlib.suppress(OSError):  # its own thread may have closed it
                sock.shutdown(socket.SHUT_RDWR)

    def _is_there(self, inode: int) -> bool:
        """Return whether the path leads to this keeper's socket, not to nothing and not to a later keeper's socket."""
        try:
            return self._path.stat().st_ino == inode
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:  # such an error does not prove that the socket is gone
            log.warning("%s cannot be checked: %s", self._path, error)
            return True

    def end(self) -> None:
        """Stop serving at once."""
        self._ending.set()
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waker:
            waker.setblocking(False)
            waker.connect(str(self._path))  # wakes the thread in `accept`

    def device_lost(self) -> None:
        """Stop serving: a lost context never works again in its process, and its memory is gone."""
        if not self._lost:
            log.error("the device %s is lost, and this keeper ends", self._keeper.device.uuid)
        self._lost = True
        self.end()
        self._hang_up()  # at once: threads may hang in the driver, and the daemon must notice the loss

    def _serve_one(self, sock: socket.socket) -> None:
        sock.settimeout(None)
        connection = _Connection(self._keeper, sock, self)
        try:
            connection.serve()
        except (OSError, BadMessageError) as error:
            log.debug("a connection ended: %s", error)
        finally:
            self._connections.discard(sock)
            sock.close()
            connection.drop_drafts()


class _Connection:
    """One connection, and the unsealed images that it has made."""

    def __init__(self, keeper: Keeper, sock: socket.socket, server: KeeperServer) -> None:
        self._keeper = keeper
        self._sock = sock
        self._server = server
        self._drafts: set[int] = set()
        self._orders: dict[type[Order], Callable[..., None]] = {
            Hello: self._hello,
            Room: self._room,
            Create: self._create,
            Fill: self._fill,
            Copy: self._copy,
            Seal: self._seal,
            Export: self._export,
            Read: self._read,
            Digest: self._digest,
            Verify: self._verify,
            Free: self._free,
            End: self._end_all,
        }

    def serve(self) -> None:
        uid = Peer.of(self._sock).uid
        if uid not in (0, os.geteuid()):
            self._say(error_message(PermissionDeniedError(f"user {uid} may not give this keeper orders"), None))
            return
        decoder = Decoder()
        while True:
            data, fds, _, _ = socket.recv_fds(self._sock, _READ_BYTES, _MOST_FDS)
            try:
                if not data:
                    return
                for message in decoder.feed(data):
                    self._obey(message, fds)
            finally:
                for fd in fds:
                    os.close(fd)

    def drop_drafts(self) -> None:
        for number in self._drafts:
            try:
                self._keeper.free(number)
            except DeviceLostError:
                self._server.device_lost()
                return
            except TrimsError:
                log.exception("a draft could not be freed")

    def _obey(self, message: Message, fds: list[int]) -> None:
        context = message.pop("traceparent", None)
        try:
            order = parse_order(message)
            with continued(context), span(f"keeper {message['op']}"):
                self._orders[type(order)](order, fds)
        except DeviceLostError as error:
            try:
                self._say(error_message(error, None))
            finally:
                self._server.device_lost()
        except TrimsError as error:
            self._say(error_message(error, None))
        except BrokenPipeError:  # the connection has ended
            raise
        except Exception as error:
            log.exception("an order failed")
            self._say(error_message(InternalError(f"{type(error).__name__}: {error}"), None))

    def _say(self, message: Message, fds: list[int] | None = None) -> None:
        socket.send_fds(self._sock, [encode(message)], fds or [])

    # -- orders ----------------------------------------------------------------------------------------------------

    def _hello(self, _order: Hello, _fds: list[int]) -> None:
        keeper = self._keeper
        images = [
            {"image": held.number, "key": held.key, "digest": held.digest, "nbytes": held.nbytes}
            for held in keeper.held()
            if held.key
        ]
        first: dict[str, Any] = {"protocol": PROTOCOL, "pid": os.getpid(), "device": keeper.device.uuid}
        driver = {"driver": keeper.memory.name, "read_only": keeper.memory.read_only, "awake": keeper.awake}
        # A daemon of an older version asks for none of these, and a keeper of an older version refuses them.
        self._say(
            {**first, **driver, "traces": True, "verifies": True, "peers": keeper.device.peers, "images": len(images)}
        )
        for image in images:  # one in each frame: a frame's size is limited, the number of images is not
            self._say(image)

    def _room(self, _order: Room, _fds: list[int]) -> None:
        free, total = self._keeper.room()
        self._say({"free_bytes": free, "total_bytes": total})

    def _create(self, order: Create, _fds: list[int]) -> None:
        held = self._keeper.create(order.nbytes)
        self._drafts.add(held.number)
        self._say({"image": held.number})

    def _fill(self, order: Fill, fds: list[int]) -> None:
        self._keeper.fill(order.image, _one(fds), lambda done: self._say({"done_bytes": done}))
        self._say({"filled": True})

    def _copy(self, order: Copy, fds: list[int]) -> None:
        if len(fds) not in (1, 2):
            raise BadMessageError(f"the order needs a head and perhaps the memory's descriptor, {len(fds)} came")
        export = export_of(order.source, fds[1] if len(fds) == 2 else -1)
        self._keeper.copy(order.image, export, fds[0], lambda done: self._say({"done_bytes": done}))
        self._say({"filled": True})

    def _seal(self, order: Seal, _fds: list[int]) -> None:
        self._keeper.seal(order.image, order.key, order.digest)
        self._drafts.discard(order.image)
        self._say({})

    def _export(self, order: Export, _fds: list[int]) -> None:
        exported, head_fd = self._keeper.export(order.image)
        try:
            fds = [head_fd] if exported.fd < 0 else [head_fd, exported.fd]
            self._say(export_message(exported), fds)
        finally:
            os.close(head_fd)
            exported.close()

    def _read(self, order: Read, fds: list[int]) -> None:
        self._keeper.read(order.image, _one(fds), lambda done: self._say({"done_bytes": done}))
        self._say({"read": True})

    def _digest(self, order: Digest, _fds: list[int]) -> None:
        self._say({"digest": self._keeper.digest(order.image)})

    def _verify(self, order: Verify, _fds: list[int]) -> None:
        self._say(self._keeper.verify(order.image)._asdict())

    def _free(self, order: Free, _fds: list[int]) -> None:
        self._keeper.free(order.image)
        self._drafts.discard(order.image)
        self._say({})

    def _end_all(self, _order: End, _fds: list[int]) -> None:
        self._say({})
        self._server.end()


def _one(fds: list[int]) -> int:
    if len(fds) != 1:
        raise BadMessageError(f"the order needs one descriptor, {len(fds)} came")
    return fds[0]
