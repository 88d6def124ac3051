"""Levels of spans, from the application down to the hardware, as MLModelScope and XSP have them."""

from __future__ import annotations

from enum import IntEnum


class Level(IntEnum):
    """How deep in the stack a span lies. A process records the levels up to the one that is asked for.

    Attributes:
        APPLICATION: What a user asks for: a request, an open, an evaluation.
        MODEL: Stages of it: queue, open, build, predict.
        FRAMEWORK: Layers and operators, by the framework's own profiler.
        LIBRARY: Calls of libraries: file systems, cuDNN.
        SYSTEM: Processes and system calls: forks, imports, page faults.
        HARDWARE: Kernels on devices, and counters.
    """

    APPLICATION = 1
    MODEL = 2
    FRAMEWORK = 3
    LIBRARY = 4
    SYSTEM = 5
    HARDWARE = 6

    @classmethod
    def parse(cls, text: str) -> Level:
        """Return the level of that name, in any case. Raises ValueError, which names all."""
        try:
            return cls[text.strip().upper()]
        except KeyError:
            names = ", ".join(each.name.lower() for each in cls)
            raise ValueError(f"no level of traces is called {text!r:.80}; there are {names}") from None
