"""What is true of an op, told by torch where torch knows it and by one table of exceptions where it does not.

Every question takes an fx node or an op. A node can answer more exactly than its op alone: attention without dropout
draws no random numbers, and a control-flow op is what its branches are.
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
    EFFECTFUL = "it acts on the world beyond its results"
    COMPUTE_INTENSIVE = "its work grows faster than the bytes it touches"
    POINTWISE = "each element of its result depends on one element of each argument"
    REDUCTION = "it folds many elements into one"
    NORMALIZATION = "it reduces, then maps the result over its input"
    CREATION = "it makes a tensor from nothing but numbers"
    COPY = "it moves elements about and computes nothing"
    DATA_DEPENDENT = "the size of its result depends on values, so that each run makes new symbols"
    COMMUNICATING = "it takes part in an exchange between processes"
    WORKSPACE = "it gives or takes a workspace whose size no shape tells, and which is there in grad mode only"


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names.split())


# What neither tags nor schemas say. Names without overload: a fact holds for a whole family.
_TOLD_BY_HAND: dict[Fact, frozenset[str]] = {
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
    # oneDNN's recurrent layers keep what their backward needs in grad mode, whatever their arguments say.
    Fact.WORKSPACE: _aten("mkldnn_rnn_layer mkldnn_rnn_layer_backward"),
    # Recorded before autograd and autocast: they change what later ops do.
    Fact.EFFECTFUL: frozenset(
        {
            "torch._C._set_grad_enabled",
            "torch.amp.autocast_mode._enter_autocast",
            "torch.amp.autocast_mode._exit_autocast",
        }
    ),
}

# By name, since older versions of torch do not have all tags.
_TOLD_BY_TAG: dict[str, Fact] = {
    "pointwise": Fact.POINTWISE,
    "reduction": Fact.REDUCTION,
    "nondeterministic_seeded": Fact.RANDOM,
    "data_dependent_output": Fact.DATA_DEPENDENT,
}

_TOLD_BY_NAMESPACE: dict[str, Fact] = {
    "_c10d_functional": Fact.COMMUNICATING,
    "c10d_functional": Fact.COMMUNICATING,
    "_c10d_functional_autograd": Fact.COMMUNICATING,
}

# A control-flow op may hold anything; one whose branches are read below adds what they hold.
_TOLD_OF_HIGHER_ORDER: dict[str, frozenset[Fact]] = {
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
    """Return all that is true of ``op`` whatever its arguments are."""
    if isinstance(op, OpOverloadPacket):
        op = getattr(op, op._overload_names[0])
    name = op_name(op)
    facts = {fact for fact, names in _TOLD_BY_HAND.items() if name in names}
    if isinstance(op, OpOverload):
        facts |= {_TOLD_BY_TAG[tag.name] for tag in op.tags if tag.name in _TOLD_BY_TAG}
        facts |= _facts_of_schema(op)
        if (fact := _TOLD_BY_NAMESPACE.get(op.namespace)) is not None:
            facts.add(fact)
    elif isinstance(op, HigherOrderOperator):
        facts |= _TOLD_OF_HIGHER_ORDER.get(name, frozenset({Fact.COMPUTE_INTENSIVE}))
    return frozenset(facts)


def _facts_of_schema(op: OpOverload) -> set[Fact]:
    schema = op._schema
    facts = set()
    if schema.is_mutable:
        facts.add(Fact.MUTATING)
    elif any(result.alias_info is not None for result in schema.returns):
        facts.add(Fact.VIEW)
    if not schema.returns and not schema.is_mutable:
        facts.add(Fact.EFFECTFUL)  # what returns nothing is called for what it does
    return facts


def facts_of(subject: Subject) -> frozenset[Fact]:
    """Return all that is true of a node or an op."""
    facts = facts_of_op(op_of(subject))
    if not isinstance(subject, fx.Node):
        return facts
    if Fact.RANDOM in facts and _dropout_probability(subject) == 0:
        facts -= {Fact.RANDOM}
    if isinstance(subject.target, HigherOrderOperator):
        facts |= _facts_of_subgraphs(subject)
    return facts


def _dropout_probability(node: fx.Node) -> object:
    """Return a fused op's ``dropout_p`` argument; None where the op has none."""
    if not isinstance(node.target, OpOverload):
        return None
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.name == "dropout_p":
            given = node.args[position] if position < len(node.args) else node.kwargs.get("dropout_p")
            return argument.default_value if given is None else given
    return None


def subgraphs_of(node: fx.Node) -> list[fx.GraphModule]:
    """Return the graph modules a higher-order op's node is given as arguments."""
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
    """Tell whether the result shares an argument's storage."""
    return Fact.VIEW in facts_of(subject)


def is_random(subject: Subject) -> bool:
    """Tell whether running it twice may give two results, and advances a generator."""
    return Fact.RANDOM in facts_of(subject)


def is_mutating(subject: Subject) -> bool:
    """Tell whether it writes into one of its arguments."""
    return Fact.MUTATING in facts_of(subject)


def is_effectful(subject: Subject) -> bool:
    """Tell whether it acts beyond its results: prints, asserts, exchanges data with other processes."""
    return not facts_of(subject).isdisjoint({Fact.EFFECTFUL, Fact.COMMUNICATING})


def is_pure(subject: Subject) -> bool:
    """Tell whether its results are all it does. A random op is pure in this sense: ask ``is_random`` too."""
    return facts_of(subject).isdisjoint({Fact.MUTATING, Fact.EFFECTFUL, Fact.COMMUNICATING})


def is_compute_intensive(subject: Subject) -> bool:
    """Tell whether running it again costs far more than reading its result from memory."""
    return Fact.COMPUTE_INTENSIVE in facts_of(subject)


def is_pointwise(subject: Subject) -> bool:
    """Tell whether it maps elements to elements, so that it fuses with its neighbours."""
    return Fact.POINTWISE in facts_of(subject)


def is_reduction(subject: Subject) -> bool:
    """Tell whether it folds many elements into one."""
    return Fact.REDUCTION in facts_of(subject)


def is_fusible(subject: Subject) -> bool:
    """Tell whether it can join a loop over its consumer's elements: pointwise, copying, creating, or a view."""
    return not facts_of(subject).isdisjoint({Fact.POINTWISE, Fact.COPY, Fact.CREATION, Fact.VIEW})
