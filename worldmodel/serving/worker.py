"""The single computing thread. Requests beyond the limit are refused at once instead of queued."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from worldmodel.serving.errors import ServiceError

T = TypeVar("T")


class Worker:
    """Runs one job at a time, so that clients do not compete for the CPU."""

    def __init__(self, max_jobs: int) -> None:
        self.max_jobs, self.num_jobs = max_jobs, 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="worldmodel")

    async def run(
        self, job: Callable[[Callable[[], bool]], T], deadline_s: float, *, is_bounded: bool = True
    ) -> T:
        """Run `job(is_wanted)` in the thread; `is_wanted` becomes false once the client no longer waits."""
        if is_bounded and self.num_jobs >= self.max_jobs:
            raise ServiceError("OVERLOADED", f"{self.num_jobs} requests are being served; try again soon")
        self.num_jobs += 1
        is_over = False
        future = self._thread.submit(job, lambda: not is_over)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), deadline_s)
        except TimeoutError as error:
            raise ServiceError("DEADLINE_EXCEEDED", f"not done in {deadline_s:g} s") from error
        finally:
            is_over = True
            self.num_jobs -= 1

    def close(self) -> None:
        """Wait for the running job and discard the others."""
        self._thread.shutdown(wait=True, cancel_futures=True)
