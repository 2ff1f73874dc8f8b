"""Memory that several share: who needs some waits for its turn."""

from __future__ import annotations

import asyncio
from collections import deque


class Room:
    """So many bytes. A room can lie in a larger one, which then has to have place as well."""

    def __init__(self, size: int, within: Room | None = None) -> None:
        self._size = size
        self._within = within
        self._used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def used(self) -> int:
        return self._used

    async def take(self, size: int) -> None:
        """Wait until there is place; what is larger than the room waits for all of it."""
        if not size:
            return  # whoever needs nothing waits for nobody
        await self._take(min(size, self._size))
        if self._within is not None:
            try:
                await self._within.take(size)
            except BaseException:
                self._give(min(size, self._size))
                raise

    def give(self, size: int) -> None:
        """Give back what was taken, with the same ``size``."""
        if not size:
            return
        self._give(min(size, self._size))
        if self._within is not None:
            self._within.give(size)

    async def _take(self, size: int) -> None:
        if not self._waiting and self._used + size <= self._size:
            self._used += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give(size)
            else:
                self._waiting.remove((size, turn))
                self._admit()
            raise

    def _give(self, size: int) -> None:
        self._used -= size
        self._admit()

    def _admit(self) -> None:
        """In the order in which they came: a large one is not overtaken for ever."""
        while self._waiting and self._used + self._waiting[0][0] <= self._size:
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._used += size
                turn.set_result(None)
