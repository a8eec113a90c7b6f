"""A lock among the threads of one process."""

import os
import threading
from types import TracebackType


class ProcessLock:
    """Held by one thread, which may take it again. A forked child has a new one: who held the old one is not there."""

    def __init__(self) -> None:
        self._of_process = os.getpid(), threading.RLock()

    def __enter__(self) -> None:
        if self._of_process[0] != os.getpid():
            self._of_process = os.getpid(), threading.RLock()
        self._of_process[1].acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._of_process[1].release()
