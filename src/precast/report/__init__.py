"""Reports on compilation: in words, as times, and as an HTML page.

``precast.report(model, x, path="report.html")`` writes the page.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from precast.artifact.archive import check_folder
from precast.lazy_names import lazy_name, naming_extras

if TYPE_CHECKING:
    from precast.report.explanation import Explanation as Explanation
    from precast.report.explanation import explain as explain
    from precast.report.profiling import Profile as Profile
    from precast.report.profiling import profile as profile

# A report of a package needs no torch, everything else does.
_HOMES = {
    "Explanation": "precast.report.explanation",
    "Profile": "precast.report.profiling",
    "explain": "precast.report.explanation",
    "profile": "precast.report.profiling",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    return lazy_name(__name__, _HOMES, name)


def report(
    fn: Callable[..., Any],
    *args: Any,
    path: str | Path,
    calls: int = 10,
    compare: str | Path | None = None,
    **kwargs: Any,
) -> Path:
    """Write a page about what ``precast.compile(fn)`` makes of a call with these arguments; returns its path.

    The page is one self-contained HTML file. A copy of ``fn`` is compiled, with the options that ``fn`` was
    compiled with if it was, and called ``calls`` times, with gradients if the call requires them; with ``calls=0``
    nothing is built or measured. With ``compare``, an earlier page, it also shows the differences. The page contains
    the source lines that the graph comes from, but no weights.

    >>> import tempfile, torch
    >>> report(torch.nn.Linear(4, 3), torch.ones(2, 4), path=f"{tempfile.mkdtemp()}/report.html", calls=0).name
    'report.html'
    """
    with naming_extras("precast.report"):
        from precast.report.collect import collect
    from precast.report.page import read_page, write_page

    check_folder(Path(path))
    previous = None if compare is None else read_page(compare)
    return write_page(collect(fn, args, kwargs, calls=calls), path, previous=previous)


class _CallablePackage(ModuleType):
    """A module that can be called: ``precast.report(model, x, path=…)`` works beside ``precast.report.explain``."""

    def __call__(self, *args: Any, **kwargs: Any) -> Path:
        return report(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
