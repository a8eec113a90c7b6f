"""Facts about ops: from torch's tags and schemas where they exist, from one table otherwise.

Every function takes an fx node or an op. A node gives more precise answers than its op: attention without dropout draws
no random numbers, and a control-flow op has the facts of its branches.
"""

import enum
import operator
from collections.abc import Callable
from functools import cache
from typing import TypeAlias

from torch import fx
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

Subject: TypeAlias = fx.Node | Callable[..., object]


class Fact(enum.Enum):
    """One thing that may be true of an op."""

    VIEW = "its result shares the storage of an argument"
    RANDOM = "it draws from a generator"
    MUTATING = "it writes into an argument"
    EFFECTFUL = "it has side effects"
    COMPUTE_INTENSIVE = "its work grows faster than the bytes it touches"
    POINTWISE = "each element of its result depends on one element of each argument"
    REDUCTION = "it reduces many elements to one"
    NORMALIZATION = "it reduces, then maps the result over its input"
    CREATION = "it creates a tensor from numbers only"
    COPY = "it moves elements without computing"
    DATA_DEPENDENT = "the size of its result depends on values, so that each run makes new symbols"
    COMMUNICATING = "it takes part in an exchange between processes"
    WORKSPACE = "it returns or takes a workspace of unknown size, which exists only in grad mode"


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names.split())


# What neither tags nor schemas say. Names are without overload: a fact holds for all overloads.
_FACTS_BY_NAME: dict[Fact, frozenset[str]] = {
    # The schema says "new tensor", the kernel returns a view.
    Fact.VIEW: _aten("_unsafe_view unsafe_split unsafe_split_with_sizes"),
    Fact.POINTWISE: _aten("_to_copy where native_dropout_backward")
    | {"prims::convert_element_type", "precast::checked"},
    Fact.COPY: _aten(
        """
        cat stack constant_pad_nd index roll flip repeat index_select gather embedding tril triu one_hot
        slice_scatter select_scatter diagonal_scatter as_strided_scatter
        reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d upsample_nearest1d upsample_nearest2d
        """
    ),
    Fact.CREATION: _aten(
        """
        full full_like zeros zeros_like ones ones_like empty empty_like empty_strided
        new_full new_zeros new_ones new_empty new_empty_strided arange scalar_tensor eye linspace lift_fresh_copy
        """
    )
    | {"prims::iota"},
    # Newer versions of torch tag most of these.
    Fact.REDUCTION: _aten(
        "sum mean prod amax amin argmax argmin any all var std var_mean norm logsumexp linalg_vector_norm"
    ),
    Fact.NORMALIZATION: _aten(
        """
        native_layer_norm native_group_norm _fused_rms_norm _softmax _safe_softmax _log_softmax
        native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training
        _native_batch_norm_legit_functional _batch_norm_with_update_functional
        """
    ),
    Fact.COMPUTE_INTENSIVE: _aten(
        """
        mm bmm addmm addbmm baddbmm mv addmv dot vdot _scaled_mm _int_mm _grouped_mm _scaled_grouped_mm
        convolution _convolution convolution_backward cudnn_convolution mkldnn_convolution
        _scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
        _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
        _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
        _scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
        _scaled_dot_product_fused_attention_overrideable _flash_attention_forward _flash_attention_backward
        _efficient_attention_forward _efficient_attention_backward mkldnn_rnn_layer _cudnn_rnn _thnn_fused_lstm_cell
        _fft_r2c _fft_c2c _fft_c2r linalg_inv_ex _linalg_svd _linalg_eigh linalg_qr linalg_lu_factor_ex
        linalg_cholesky_ex linalg_solve_triangular _linalg_solve_ex _cdist_forward _embedding_bag grid_sampler_2d
        sort topk kthvalue cumsum cumprod
        """
    ),
    Fact.DATA_DEPENDENT: _aten("_local_scalar_dense nonzero"),
    # oneDNN's recurrent layers save what their backward needs in grad mode, whatever their arguments.
    Fact.WORKSPACE: _aten("mkldnn_rnn_layer mkldnn_rnn_layer_backward"),
    # In pre-dispatch graphs: they change what later ops do.
    Fact.EFFECTFUL: frozenset(
        {
            "torch._C._set_grad_enabled",
            "torch.amp.autocast_mode._enter_autocast",
            "torch.amp.autocast_mode._exit_autocast",
        }
    ),
}

# By name, since older versions of torch lack some tags.
_FACTS_BY_TAG: dict[str, Fact] = {
    "pointwise": Fact.POINTWISE,
    "reduction": Fact.REDUCTION,
    "nondeterministic_seeded": Fact.RANDOM,
    "data_dependent_output": Fact.DATA_DEPENDENT,
}

_FACTS_BY_NAMESPACE: dict[str, Fact] = {
    "_c10d_functional": Fact.COMMUNICATING,
    "c10d_functional": Fact.COMMUNICATING,
    "_c10d_functional_autograd": Fact.COMMUNICATING,
}

_UPDATING_STATISTICS = _aten("batch_norm instance_norm native_batch_norm cudnn_batch_norm _batch_norm_impl_index")

# Higher-order ops may contain anything; facts of their subgraphs are added below.
_FACTS_OF_HIGHER_ORDER: dict[str, frozenset[Fact]] = {
    "run_and_save_rng_state": frozenset({Fact.RANDOM}),
    "with_effects": frozenset({Fact.EFFECTFUL}),
    "triton_kernel_wrapper_mutation": frozenset({Fact.MUTATING, Fact.COMPUTE_INTENSIVE}),
}


def op_of(subject: Subject) -> object:
    """Return the op that ``subject`` calls, or None for nodes that call none (placeholders, attributes, outputs)."""
    if not isinstance(subject, fx.Node):
        return subject
    return subject.target if subject.op == "call_function" else None


@cache
def op_name(op: object) -> str:
    """Return an op's name without overload, as in ``aten::mm``."""
    if isinstance(op, OpOverload):
        return str(op._schema.name)
    if isinstance(op, OpOverloadPacket):
        return str(op._qualified_op_name)
    if isinstance(op, HigherOrderOperator):
        return str(op._name)
    return f"{getattr(op, '__module__', '')}.{getattr(op, '__name__', op)}"


@cache
def facts_of_op(op: object) -> frozenset[Fact]:
    """Return the facts of ``op`` that hold for all arguments."""
    if isinstance(op, OpOverloadPacket):
        op = getattr(op, op._overload_names[0])
    name = op_name(op)
    facts = {fact for fact, names in _FACTS_BY_NAME.items() if name in names}
    if isinstance(op, OpOverload):
        facts |= {_FACTS_BY_TAG[tag.name] for tag in op.tags if tag.name in _FACTS_BY_TAG}
        facts |= _facts_of_schema(op)
        if (fact := _FACTS_BY_NAMESPACE.get(op.namespace)) is not None:
            facts.add(fact)
    elif isinstance(op, HigherOrderOperator):
        facts |= _FACTS_OF_HIGHER_ORDER.get(name, frozenset({Fact.COMPUTE_INTENSIVE}))
    return frozenset(facts)


def _facts_of_schema(op: OpOverload) -> set[Fact]:
    schema = op._schema
    facts = set()
    if schema.is_mutable:
        facts.add(Fact.MUTATING)
    elif any(result.alias_info is not None for result in schema.returns):
        facts.add(Fact.VIEW)
    if not schema.returns and not schema.is_mutable:
        facts.add(Fact.EFFECTFUL)  # an op without results is called for its effect
    return facts


def facts_of(subject: Subject) -> frozenset[Fact]:
    """Return the facts of a node or an op."""
    facts = facts_of_op(op_of(subject))
    if not isinstance(subject, fx.Node):
        return facts
    if Fact.RANDOM in facts and _argument(subject, "dropout_p") == 0:
        facts -= {Fact.RANDOM}
    if op_name(subject.target) in _UPDATING_STATISTICS and _updates_statistics(subject):
        facts |= {Fact.MUTATING}
    if isinstance(subject.target, HigherOrderOperator):
        facts |= _facts_of_subgraphs(subject)
    return facts


def _updates_statistics(node: fx.Node) -> bool:
    """Whether a norm writes into its running statistics, which its schema does not say."""
    is_training = _argument(node, "training") or _argument(node, "use_input_stats")
    return bool(is_training) and _argument(node, "running_mean") is not None


def _argument(node: fx.Node, name: str) -> object:
    """Return an op's argument by its name; None if there is none."""
    if not isinstance(node.target, OpOverload):
        return None
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.name == name:
            given = node.args[position] if position < len(node.args) else node.kwargs.get(name)
            return argument.default_value if given is None else given
    return None


def subgraphs_of(node: fx.Node) -> list[fx.GraphModule]:
    """Return the graph modules among the arguments of a higher-order op's node."""
    owner = node.graph.owning_module
    found = []
    for argument in node.all_input_nodes:
        if argument.op == "get_attr" and owner is not None:
            value = operator.attrgetter(str(argument.target))(owner)
            if isinstance(value, fx.GraphModule):
                found.append(value)
    return found


def _facts_of_subgraphs(node: fx.Node) -> frozenset[Fact]:
    facts: set[Fact] = set()
    for subgraph in subgraphs_of(node):
        for inside in subgraph.graph.nodes:
            facts |= facts_of(inside)
    return frozenset(facts & {Fact.RANDOM, Fact.MUTATING, Fact.EFFECTFUL, Fact.COMMUNICATING})


def is_view(subject: Subject) -> bool:
    """Whether the result shares an argument's storage."""
    return Fact.VIEW in facts_of(subject)


def is_random(subject: Subject) -> bool:
    """Whether it draws random numbers: running it twice may return different results."""
    return Fact.RANDOM in facts_of(subject)


def is_mutating(subject: Subject) -> bool:
    """Whether it writes into one of its arguments."""
    return Fact.MUTATING in facts_of(subject)


def is_effectful(subject: Subject) -> bool:
    """Whether it has side effects: it prints, asserts, or exchanges data with other processes."""
    return not facts_of(subject).isdisjoint({Fact.EFFECTFUL, Fact.COMMUNICATING})


def is_pure(subject: Subject) -> bool:
    """Whether it has no effects besides its results. Random ops are pure in this sense: check ``is_random`` too."""
    return facts_of(subject).isdisjoint({Fact.MUTATING, Fact.EFFECTFUL, Fact.COMMUNICATING})


def is_compute_intensive(subject: Subject) -> bool:
    """Whether recomputing it costs far more than reading its result from memory."""
    return Fact.COMPUTE_INTENSIVE in facts_of(subject)


def is_reduction(subject: Subject) -> bool:
    """Whether it is a reduction."""
    return Fact.REDUCTION in facts_of(subject)
