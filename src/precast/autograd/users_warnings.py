"""Warnings that point at the line of the user's that called compiled code, however deep that call is in ours."""

import sys
import warnings
from types import FrameType


def warn_at_users_line(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, at the innermost line that is neither ours nor torch's."""
    # What tells whose a file is comes with the tracer, which starts without a trace do without.
    from precast.tracing.provenance import is_users_file

    level = 1
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users_file(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level + 1 if frame is not None else 2)
