"""Write of an input that is updated in part only what changes.

Before: ``for i0 < 12, i1 < 1024, i2 < 768:  cache[i0, i1, i2] = where(i1 == 5, k[i0, i2], cache[i0, i1, i2])``
After:  ``for i0 < 12, i2 < 768:  cache[i0, 5, i2] = k[i0, i2]``

Conditions on one loop variable say how far its loop goes; others decide whether an element is written.
"""

from __future__ import annotations

from dataclasses import replace

from precast.ir.loops.program import InputUpdate, Kernel, Loop, Store
from precast.ir.loops.scalars import Apply, Load, Scalar
from precast.lower.conditions import all_of
from precast.lower.inline import strip_names
from precast.lower.loop_ranges import loops_within, ranges_of, where_holds


def changes_alone(kernel: Kernel, update: InputUpdate) -> Kernel:
    """The kernel that writes the result, without writing what is as it was: that is for the memory of the input."""
    match kernel.body:
        case (Loop(variables, (Store(guard=None, combine=None) as store,), ()),):
            value = strip_names(store.value)
        case _:
            return kernel
    if not isinstance(value, Apply) or value.operation != "where" or not _is_old(value.arguments[2], store, update):
        return kernel
    condition, new, _ = value.arguments
    ranges, left = ranges_of(condition, variables)
    if not left:
        new = where_holds(new, condition)
    guard = all_of(*left) if left else None
    body = loops_within((replace(store, value=new, guard=guard),), variables, ranges)
    return replace(kernel, body=body)


def _is_old(value: Scalar, store: Store, update: InputUpdate) -> bool:
    """Whether this is the input's element in the place of the result's that is stored."""
    load = strip_names(value)
    is_element = isinstance(load, Load) and (load.indices, load.guard) == (store.indices, None)
    return is_element and isinstance(load, Load) and (load.buffer, store.buffer) == (update.input, update.result)
