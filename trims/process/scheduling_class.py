"""Share of a processor that a session's processes get while other programs want it.

Where the kernel groups processes by session (see sched(7), autogroup), each group gets as much as any other, whatever
niceness its processes have. So the niceness of the group is set. Unlike that of a process, it may be lowered again
without privilege. Where the kernel does not group like this, which is so in most containers, nothing changes.
"""

from __future__ import annotations

#: Niceness of a session that gives way: it gets a tenth of what others get; and of one that no request will wait for,
#: which gets a sixtieth.
GIVES_WAY, BACKGROUND = 10, 19
#: Seconds between two changes: the kernel takes ten a second from users without privilege.
CHANGE_PAUSE_S = 0.1


def weigh(pid: int, niceness: int) -> None:
    """Set the niceness of a process's session as a whole. Raises OSError; BlockingIOError to be tried again."""
    with open(f"/proc/{pid}/autogroup", "w") as group:
        group.write(str(niceness))
