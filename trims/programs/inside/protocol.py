"""Constants of the messages between a caller, the host of a template, the template, and its forks."""

from __future__ import annotations

#: Descriptors that one message may bring: as many as the kernel passes at once.
MOST_DESCRIPTORS = 253
#: Bytes of a message that comes in a file: the environment and the arguments of a program may be two megabytes.
LONG_BYTES = 8 << 20
#: Answer of a program that begins, and what it is given to begin.
READY, GO = b"r", b"g"
