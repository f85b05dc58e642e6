"""A driver with a thread of its own: the loop around a slet that is iterated."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NoReturn

from exop.logs import logger
from exop.runtime.drivers.base import Driver, Halted, be_driver


class ThreadDriver(Driver):
    """A driver that is a thread of its own.

    Attributes:
        crash: The error that has ended it, which is none of a slet's.
        left: The thread has finished its work, until it is given more.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.crash: BaseException | None = None
        self.left = False
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        """The thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread; a driver starts once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._main, name=f"exop {self.name}", daemon=True)
            self._thread.start()

    def begin(self) -> None:
        """Let the slet that it drives begin: everything is open and bound."""
        self.start()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the thread has left; `False` when it has not within *timeout* seconds."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self.alive

    def prompt(self) -> None:
        """Make the driver look into its inlets; one whose own work is over comes back for that."""
        super().prompt()
        with self._flags:
            if self.left and not self.halting:
                name, before = f"exop {self.name} (back)", self._thread
                thread = threading.Thread(target=self._main, args=(self._come_back, before), name=name, daemon=True)
                thread.start()
                self._thread, self.left = thread, False

    def run(self) -> None:
        """Push until there is nothing more to push."""
        raise NotImplementedError

    def _come_back(self) -> None:
        """All that is left to do is what others have left."""

    def _main(self, run: Callable[[], None] | None = None, before: threading.Thread | None = None) -> None:
        if before is not None:
            before.join()  # one thread at a time runs a driver, and notes that it rests
        be_driver(self)
        try:
            self._keep_running(run or self.run)  # `_leave` has set `left`; a prompt since then has reset it
        except Halted:
            self.left = True
        except BaseException as error:  # noqa: BLE001 (a defect, where nothing can be resumed any more)
            self._note_crash(error)
            self.left = True
        finally:
            self.rest()
            self.told()

    def _keep_running(self, run: Callable[[], None]) -> None:
        """Run to the end; after a defect once more, when the component has been repaired."""
        while True:
            try:
                run()
                while not self._leave():
                    self.busy = True
                    self.stand_by()
            except BaseException as error:  # noqa: BLE001 (a defect strands the driver; the rest passes)
                self.busy = True
                self.unwound(error)
            else:
                return

    def crashed(self, error: BaseException) -> NoReturn:
        """Leave at once: neither the end of the stream, nor anything else, goes out any more."""
        self._note_crash(error)
        self.halt()
        raise Halted

    def _note_crash(self, error: BaseException) -> None:
        self.crash = error
        report_crash(self, error)

    def _leave(self) -> bool:
        """Leave, unless another thread has added work meanwhile."""
        with self._flags:
            self.left = not self.filled
        return self.left


def report_crash(driver: ThreadDriver, error: BaseException) -> None:
    """Log the error that ended a driver."""
    logger("exop.runtime").error("a driver has crashed", driver=driver.name, exc_info=error)
