"""A blocking memory for SimPy processes: reservations of any size, granted in the order in which they are asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import simpy

from simcore.errors import GraphError
from simcore.quantities import format_bytes


@dataclass(eq=False, slots=True)
class Buffer:
    """A reservation that was granted. It is freed by `free`, or at the end of a ``with`` block."""

    memory: BlockingMemory
    name: str
    size_bytes: int
    process: simpy.Process | None
    asked_ps: int
    granted_ps: int = -1
    freed_ps: int = -1
    freed_by: simpy.Process | None = None

    def free(self) -> None:
        """Give the bytes back. Raises `GraphError` if that was done before."""
        self.memory.free(self)

    def __enter__(self) -> Buffer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.freed_ps < 0:
            self.free()


@dataclass(eq=False)
class BlockingMemory:
    """``capacity_bytes`` of a memory that processes wait for.

    A reservation waits while those asked for before it wait, even if it would fit: grants are in order, so that who
    needs much is not overtaken for ever.
    """

    env: simpy.Environment
    name: str
    capacity_bytes: int
    buffers: list[Buffer] = field(default_factory=list)
    """all that were ever granted, in order"""
    _line: deque[tuple[Buffer, simpy.Event]] = field(default_factory=deque)
    _set_aside_bytes: int = 0

    @property
    def held(self) -> list[Buffer]:
        """What is granted and not yet freed."""
        return [buffer for buffer in self.buffers if buffer.freed_ps < 0]

    @property
    def free_bytes(self) -> int:
        return self.capacity_bytes - self._set_aside_bytes - sum(buffer.size_bytes for buffer in self.held)

    @property
    def waiting(self) -> list[Buffer]:
        """What is asked for and not yet granted, the next first."""
        return [buffer for buffer, _ in self._line]

    def reserve(self, name: str, size_bytes: int) -> Generator[simpy.Event, Any, Buffer]:
        """``buffer = yield from memory.reserve("tile", 2**20)``: wait for the bytes.

        Raises `GraphError` if they can never be granted.
        """
        if size_bytes < 0 or size_bytes > self.capacity_bytes:
            raise GraphError(
                f"{name!r}: {format_bytes(size_bytes, binary=True)} of {self.name} can't be reserved; there are "
                f"{format_bytes(self.capacity_bytes, binary=True)}"
            )
        asked = Buffer(self, name, size_bytes, self.env.active_process, int(self.env.now))
        entry = asked, simpy.Event(self.env)
        self._line.append(entry)
        self._grant()
        try:
            yield entry[1]
        except BaseException:
            if entry in self._line:
                self._line.remove(entry)
                self._grant()
            else:
                self.free(asked)
            raise
        return asked

    def free(self, buffer: Buffer) -> None:
        """Give a buffer's bytes back."""
        if buffer.memory is not self or buffer.granted_ps < 0:
            raise GraphError(f"buffer {buffer.name!r} is none of this {self.name}'s")
        if buffer.freed_ps >= 0:
            raise GraphError(f"buffer {buffer.name!r} of {self.name} is freed twice")
        buffer.freed_ps, buffer.freed_by = int(self.env.now), self.env.active_process
        self._grant()

    def check_free(self, what: str, size_bytes: int) -> None:
        """Raise `GraphError` if ``size_bytes`` can't be set aside now."""
        if size_bytes > self.free_bytes:
            raise GraphError(
                f"the pools of {what} need {format_bytes(size_bytes, binary=True)} of {self.name}, of which "
                f"{format_bytes(self.free_bytes, binary=True)} are free"
            )

    def set_aside(self, what: str, size_bytes: int) -> None:
        """Take a fixed part of the memory at once, for the pools of a task graph; negative gives it back."""
        self.check_free(what, size_bytes)
        self._set_aside_bytes += size_bytes
        self._grant()

    def _grant(self) -> None:
        while self._line and self._line[0][0].size_bytes <= self.free_bytes:
            buffer, event = self._line.popleft()
            buffer.granted_ps = int(self.env.now)
            self.buffers.append(buffer)
            event.succeed(buffer)
