"""Reports of the lens, made beside the notebook: a kernel takes seconds to compile, and the page has to stay alive."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable


class Reports:
    """Asks for reports in a thread, one at a time. Of those that wait, only the newest is compiled.

    ``done`` is called in the notebook's own thread, by its event loop, when an answer has come. Where no loop runs (a
    script, a test) nobody is called: :meth:`wait`, then look.
    """

    def __init__(self, inspect: Callable, done: Callable):
        self._inspect, self._done = inspect, done
        self._answers: dict = {}
        self._wanted: tuple | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None

    def get(self, key, arguments: dict):
        """The report of these arguments, or the exception that it ended in; None if it is still being made."""
        with self._lock:
            if key in self._answers:
                self._wanted = None  # what still waits is no longer shown
                return self._answers[key]
            self._wanted = key, arguments
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()
        return None

    def wait(self) -> None:
        """Return when nothing is being compiled."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                if self._wanted is None or self._wanted[0] in self._answers:
                    self._thread = None
                    return
                key, arguments = self._wanted
            try:
                answer = self._inspect(**arguments)
            except Exception as error:  # the widget shows it; a thread would only print it
                answer = error
            with self._lock:
                self._answers[key] = answer
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._done)
