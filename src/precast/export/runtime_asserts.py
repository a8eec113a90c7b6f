"""Writes what tracing was told of unknown values (``torch._check``) into the graph, so that each run checks it.

Before: ``item = item(n); slice = slice(x, 0, 0, item)``, and ``2 <= item`` known to the tracer alone
After:  ``item = item(n); ge = ge(item, 2); _assert_scalar(ge, …); slice = …``
"""

from torch import fx
from torch.fx.passes.runtime_assert import insert_deferred_runtime_asserts

from precast.export.sizes import fake_mode_of
from precast.ir.node_meta import has_value, set_value, value_of
from precast.ir.program import Program


def with_runtime_asserts(program: Program) -> Program:
    """The same program with its assertions as nodes; the same object if there are none."""
    mode = fake_mode_of(program)
    shape_env = mode.shape_env
    assert shape_env is not None, "our fake modes have a shape environment"
    if not any("unbacked_bindings" in node.meta for node in program.graph.nodes):
        return program
    copy = program.replace(graph=program.copy_graph())
    with mode:
        insert_deferred_runtime_asserts(copy.module, shape_env, "export", export=True)
    for node in copy.graph.nodes:
        if node.op == "call_function" and not has_value(node):
            set_value(node, _computed(node))
    copy.module.recompile()
    return copy


def _computed(node: fx.Node) -> object:
    """The value of a node that only computes on sizes; ``None`` for one that is called for what it does."""
    if not callable(node.target) or "assert" in node.name or "constrain" in node.name:
        return None
    args = [value_of(argument) if isinstance(argument, fx.Node) else argument for argument in node.args]
    result: object = node.target(*args, **node.kwargs)
    return result
