"""The loop of a template's process: it imports and forks as the messages on its socket say, and buries its forks.

Messages, to which a role adds fields:

    {"op": "import", "modules": [...]}  -> {"op": "imported", ...}
    {"op": "fork"} and descriptors      -> {"op": "forked", "pid": ...} and a pidfd, or {"op": "refused", "why": ...}

and without being asked {"op": "ended", "pid": ..., "status": ...}. The template ends with its socket; its forks do not.
Roles: predictors, which may become spares, also with a context of a device (`trims_predictors.worker.template`), and
programs (`trims.programs.inside.template`).
"""

from __future__ import annotations

import gc
import os
import select
from typing import TYPE_CHECKING

from trims.process import messages
from trims.templates.fork_safety import fork_blocker
from trims.templates.randomness import installed_reseeders

if TYPE_CHECKING:
    import socket
    from collections.abc import Collection

    from trims.templates.randomness import Reseeder
    from trims.wire.frames import Message


class ForkLoop:
    """Loop of a template. A role has `_import`, `_fork` and `_ended`.

    Args:
        sock: Socket to the process that the template serves.
        lifeline: Descriptor of this process's own, which its forks must not have.
        long_bytes: Bytes of a message that may come in a file; 0 if none may.
    """

    def __init__(self, sock: socket.socket, lifeline: int, *, long_bytes: int = 0) -> None:
        self._sock, self._lifeline, self._long_bytes = sock, lifeline, long_bytes
        #: Connections that are no reason not to fork.
        self._known = {sock.fileno(), lifeline}
        #: pidfd -> pid
        self._children: dict[int, int] = {}
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def _import(self, message: Message) -> Message:
        """Import what a message names, and return the answer."""
        raise NotImplementedError

    def _fork(self, message: Message, fds: list[int]) -> tuple[int, Message]:
        """Fork; the gate is open. Return the new process and fields of the answer; never return in the fork."""
        raise NotImplementedError

    def _ended(self, pid: int) -> Message:
        """Return fields of the report on a fork that has ended; its number may be another process's afterwards."""
        raise NotImplementedError

    def _blocker(self, own: Collection[int]) -> str | None:
        """Return why this process must not be forked now; None if it may be."""
        return fork_blocker({*self._known, *own})

    def _turn(self) -> float | None:
        """Do what is due between two messages. Return after how many milliseconds to come back; None for no bound."""
        return None

    def serve(self) -> None:
        """Carry out messages and bury forks until the other side lets go."""
        while True:
            for fd, _ in self._poll.poll(self._turn()):
                if fd in self._children:
                    self._bury(fd)
                elif fd != self._sock.fileno():
                    continue  # the role has registered it, and reads it at its turn
                elif (received := messages.receive(self._sock, long_bytes=self._long_bytes)) is None:
                    return
                elif received[0]["op"] == "import":
                    self._send(self._import(received[0]))
                else:
                    self._fork_once(*received)

    def _send(self, message: Message, fds: list[int] | tuple[()] = ()) -> None:
        messages.send(self._sock, message, fds, long=bool(self._long_bytes))

    def _fork_once(self, message: Message, fds: list[int]) -> None:
        why = self._blocker(fds)
        if why is not None:
            messages.close_all(fds)
            self._send({"op": "refused", "why": why})
            return
        pid, facts = self._fork(message, fds)
        messages.close_all(fds)
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)
        self._send({"op": "forked", "pid": pid, **facts}, [pidfd])

    def _bury(self, pidfd: int) -> None:
        """Report how a fork has ended, and bury it after that, or its status would be lost with this process."""
        pid = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert found is not None, "it has ended"
        status = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        self._send({"op": "ended", "pid": pid, "status": status, **self._ended(pid)})
        os.waitpid(pid, 0)

    def _leave(self) -> None:
        """Close in a fork what is the template's, whose end could not be seen otherwise while the fork lives."""
        self._sock.close()
        messages.close_all([self._lifeline, *self._children])


def freeze() -> list[Reseeder]:
    """Prepare for forks once modules were imported. Return what seeds each fork. Raises NotSupportedError.

    The first collection in a fork would copy each page that has an object, unless all that is there is set apart.
    """
    reseeders = installed_reseeders()
    gc.collect()
    gc.freeze()
    return reseeders
