"""grid top as a person sees it, by Textual's pilot."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from textual.pilot import Pilot

from distributed_grid.cli.top.app import TopApp
from distributed_grid.cli.top.overview import LiveTable
from distributed_grid.store.home import GridHome


class Eyes:
    """Sees what is on the screen, and waits for what is to come."""

    def __init__(self, pilot: Pilot[None]) -> None:
        self.pilot = pilot
        self.app = pilot.app
        self.press = pilot.press

    @property
    def lines(self) -> list[str]:
        strips = self.app.screen._compositor.render_strips(self.app.size)
        return ["".join(segment.text for segment in strip) for strip in strips]

    async def sees(self, pattern: str, within_s: float = 80.0) -> str:
        """The first line that shows it, once there is one."""
        deadline = time.monotonic() + within_s
        while True:
            if found := [line for line in self.lines if re.search(pattern, line)]:
                return found[0]
            assert time.monotonic() < deadline, f"{pattern!r} was not seen in\n" + "\n".join(self.lines)
            await self.pilot.pause(0.05)

    async def press_until(self, key: str, pattern: str) -> None:
        """A key that may be pressed again: on a busy machine one that comes between two screens is lost."""
        for _ in range(20):
            await self.press(key)
            with suppress(AssertionError):
                await self.sees(pattern, 4.0)
                return
        await self.sees(pattern)

    async def until(self, condition: Callable[[], Any], within_s: float = 80.0) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, "it did not become true:\n" + "\n".join(self.lines)
            await self.pilot.pause(0.05)

    @property
    def nodes(self) -> list[str]:
        """In the order of the table."""
        table = self.app.screen_stack[1].query_one("#nodes", LiveTable)
        return [str(row.key.value) for row in table.ordered_rows]


def on_screen(home: GridHome, look: Callable[[Eyes], Awaitable[None]], size: tuple[int, int] = (80, 24)) -> None:
    @asynccontextmanager
    async def shown() -> AsyncIterator[Eyes]:
        app = TopApp(home, every_s=0.1)
        async with app.run_test(size=size, notifications=True) as pilot:
            eyes = Eyes(pilot)
            await eyes.sees("Nodes by name")
            await eyes.until(lambda: eyes.app.focused is not None)  # else the keys are lost
            yield eyes

    async def scene() -> None:
        async with shown() as eyes:
            await look(eyes)

    asyncio.run(scene())
