"""One rate for the tasks of all Celery workers, booked by CL.RESERVE, and a pause for all of them, by CL.PAUSE."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from celery import Task
from celery.result import AsyncResult

from redis_cell import Booked, Cell, Rate

NEAR = 0.05  # seconds for which a worker sleeps rather than sending the task again


class Pace:
    """A rate that all workers share. A task has a slot, which is an instant: it may call the upstream from then on.

    `max_wait` is how far ahead slots are booked. It must be shorter than the broker's visibility timeout, after which
    a message that waits in a worker is delivered a second time. `late` is how long after its slot a task may still
    call: a task that runs later, because all workers were busy or down, books another slot. It must be longer than a
    round trip to the server. In any stretch of time, the tasks that are let through are at most those of the rate in
    that time and `late` together.
    """

    def __init__(self, cell: Cell, name: str, rate: Rate, *, max_wait: float = 600, late: float = 0.5) -> None:
        self.cell = cell
        self.rate = rate
        self.max_wait = max_wait
        self.late = late
        self.slots = f"{name}:slots"
        self.pauses = f"{name}:pauses"  # nothing is ever taken from this limiter, so it refuses only during a pause

    def send(self, task: Task, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> AsyncResult:
        """Books a slot and sends the task with it, so that it reaches a worker's process when the slot has come."""
        slot, wait = self.book()
        return task.apply_async(args, {**(kwargs or {}), "slot": slot}, countdown=wait)

    def wait_turn(self, task: Task, slot: float | None) -> None:
        """Returns if the task may call the upstream now. Otherwise ends this run, and sends the task again for later.

        `slot` is the task's argument of that name. If it is None, if it has passed, or in a pause, one is booked.
        """
        if task.max_retries is not None:
            raise TypeError(f"{task.name} needs max_retries=None, because it is sent again for each slot")
        while True:
            wait = 0.0 if slot is None else slot - time.time()
            if slot is None:
                slot, wait = self.book()
            if slot is None or wait > NEAR:
                self._send_again(task, slot, wait)
            time.sleep(max(0, wait))
            paused = not self.cell.peek(self.pauses, self.rate)
            if not paused and time.time() <= slot + self.late:
                return
            slot = None

    def pause(self, task: Task, seconds: float) -> NoReturn:
        """Lets no task call the upstream for this time, and sends the task again for a slot after it."""
        # In this order: the tasks that are refused by the first one book by the second one, sooner or later.
        self.cell.pause(self.pauses, self.rate, seconds)
        self.cell.pause(self.slots, self.rate, seconds)
        self.again(task)

    def again(self, task: Task) -> NoReturn:
        """Ends this run, and sends the task again with another slot: each call of the upstream needs one."""
        self._send_again(task, *self.book())

    def book(self) -> tuple[float | None, float]:
        """Returns a slot and the seconds until then, or None and how long to wait before trying to book again."""
        booking = self.cell.reserve(self.slots, self.rate, max_wait=self.max_wait)
        if isinstance(booking, Booked):
            return time.time() + booking.wait, booking.wait
        return None, self.max_wait / 2

    def _send_again(self, task: Task, slot: float | None, wait: float) -> NoReturn:
        raise task.retry(kwargs={**task.request.kwargs, "slot": slot}, countdown=wait)
