"""The operators that a program from a file may call: files are untrusted, and not every kernel checks its arguments.

Of torch's operators, those on this list: Core ATen, and what exported programs and their gradients consist of; nothing
that reads files or arbitrary memory, and nothing sparse, nested or quantized. ``tests/export/test_operator_attacks.py``
calls them with invalid arguments; those whose kernels do not check are checked by ``checked`` before they run.
Operators that libraries registered in this process are theirs to check: importing such a library allows files to call
them.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import is_fake

from precast.errors import InputValueError
from precast.ops.fitting_arguments import RULES


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_REFUSED_NAMESPACES = _words(
    """
    prim debugprims rngprims inductor inductor_prims _inductor_debug _inductor_test profiler onnx onnx_symbolic
    static_runtime c10d c10d_functional _c10d_functional_autograd symm_mem _dtensor device_mesh fsdp
    pippy bucketing cplib streams _test _torch_testing quantization _quantized quantized ao sparse semi_structured
    mkldnn onednn mkldnn_prepacked prepacked xnnpack metal metal_prepack vulkan vulkan_prepack mkl cuda cudnn triton
    triton_kernels torch_attn flex_lib _native export debug_mode_ops
    """
)
"""Torch's namespaces besides ``aten`` and ``prims``: backends, other processes, and what is no part of a program.

``quantized_decomposed`` and ``torch_nn`` are not refused: their operators are written in Python over ``aten``.
"""

COLLECTIVES = "_c10d_functional"
_COLLECTIVES = _words("all_reduce all_gather_into_tensor reduce_scatter_tensor all_to_all_single broadcast wait_tensor")
"""The collectives that a file may call on a process group that this process has joined, by its name."""

_ATEN = _words(
    """
    __and__ __lshift__ __or__ __rshift__ __xor__ _adaptive_avg_pool2d _adaptive_avg_pool2d_backward
    _adaptive_avg_pool3d _adaptive_avg_pool3d_backward _add_relu _aminmax _assert_async _assert_scalar
    _assert_tensor_metadata _batch_norm_no_update _batch_norm_with_update_functional _cast_Byte _cast_Char
    _cast_Double _cast_Float _cast_Half _cast_Int _cast_Long _cast_Short _cdist_backward _cdist_forward _chunk_cat
    _conj _conj_copy _conj_physical _convolution _convolution_mode _ctc_loss _ctc_loss_backward _embedding_bag
    _embedding_bag_backward _embedding_bag_dense_backward _embedding_bag_forward_only
    _embedding_bag_per_sample_weights_backward _euclidean_dist
    _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _fft_c2c _fft_c2r _fft_r2c _foreach_abs
    _foreach_acos _foreach_add _foreach_addcdiv _foreach_addcmul _foreach_asin _foreach_atan _foreach_ceil
    _foreach_clamp_max _foreach_clamp_min _foreach_clone _foreach_cos _foreach_cosh _foreach_div _foreach_erf
    _foreach_erfc _foreach_exp _foreach_expm1 _foreach_floor _foreach_frac _foreach_lerp _foreach_lgamma
    _foreach_log _foreach_log10 _foreach_log1p _foreach_log2 _foreach_max _foreach_maximum _foreach_minimum
    _foreach_mm _foreach_mul _foreach_neg _foreach_norm _foreach_pow _foreach_powsum _foreach_reciprocal
    _foreach_round _foreach_rsqrt _foreach_sigmoid _foreach_sign _foreach_sin _foreach_sinh _foreach_sqrt
    _foreach_sub _foreach_tan _foreach_tanh _foreach_trunc _functional_assert_async _functional_assert_scalar
    _functional_sym_constrain_range _functional_sym_constrain_range_for_size _fused_adagrad _fused_adam
    _fused_adamw _fused_rms_norm _fused_rms_norm_backward _fused_sgd _grouped_mm _histogramdd_bin_edges
    _histogramdd_from_bin_cts _histogramdd_from_bin_tensors _int_mm _is_all_true _is_any_true _linalg_check_errors
    _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex _linalg_svd _local_scalar_dense
    _log_softmax _log_softmax_backward_data _logcumsumexp _make_dep_token _masked_scale _native_batch_norm_legit
    _native_batch_norm_legit_functional _native_batch_norm_legit_no_training _neg_view _neg_view_copy
    _pack_padded_sequence _pack_padded_sequence_backward _pad_circular _pad_packed_sequence _pdist_backward
    _pdist_forward _prelu_kernel _prelu_kernel_backward _reshape_copy _safe_softmax _sample_dirichlet
    _scaled_dot_product_attention_math _scaled_dot_product_cudnn_attention
    _scaled_dot_product_cudnn_attention_backward _scaled_dot_product_efficient_attention
    _scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention
    _scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward _shape_as_tensor _softmax _softmax_backward_data
    _standard_gamma _standard_gamma_grad _to_copy _to_cpu _trilinear _unique _unique2 _unsafe_index
    _unsafe_index_put _unsafe_masked_index _unsafe_masked_index_put_accumulate _unsafe_view _upsample_bicubic2d_aa
    _upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward
    _upsample_lanczos2d_aa _upsample_lanczos2d_aa_backward _upsample_nearest_exact1d
    _upsample_nearest_exact1d_backward _upsample_nearest_exact2d _upsample_nearest_exact2d_backward
    _upsample_nearest_exact3d _upsample_nearest_exact3d_backward _weight_norm _weight_norm_differentiable_backward
    _weight_norm_interface _weight_norm_interface_backward abs absolute acos acosh adaptive_avg_pool1d
    adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool2d_backward
    adaptive_max_pool3d adaptive_max_pool3d_backward add addbmm addcdiv addcmul addmm addmv addr adjoint
    affine_grid_generator affine_grid_generator_backward alias alias_copy all allclose alpha_dropout amax amin
    aminmax angle any arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort argwhere
    as_strided as_strided_copy as_strided_scatter asin asinh atan atan2 atanh atleast_1d atleast_2d atleast_3d
    avg_pool1d avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward baddbmm bartlett_window batch_norm
    batch_norm_backward bernoulli bilinear binary_cross_entropy binary_cross_entropy_backward
    binary_cross_entropy_with_logits bincount binomial bitwise_and bitwise_left_shift bitwise_not bitwise_or
    bitwise_right_shift bitwise_xor blackman_window block_diag bmm broadcast_tensors broadcast_to bucketize
    cartesian_prod cat cauchy cdist ceil celu chain_matmul chalf channel_shuffle cholesky cholesky_inverse
    cholesky_solve chunk clamp clamp_max clamp_min clip clone col2im column_stack combinations complex concat
    concatenate conj conj_physical constant_pad_nd contiguous conv1d conv2d conv3d conv_tbc conv_transpose1d
    conv_transpose2d conv_transpose3d convolution convolution_backward copy copysign corrcoef cos cosh
    cosine_embedding_loss cosine_similarity count_nonzero cov cross cross_entropy_loss ctc_loss cummax cummin
    cumprod cumprod_backward cumsum cumulative_trapezoid deg2rad det detach detach_copy diag diag_embed diagflat
    diagonal diagonal_backward diagonal_copy diagonal_scatter diff digamma dim dist div divide dot dropout dsplit
    dstack einsum elu elu_backward embedding embedding_bag embedding_dense_backward empty empty_like
    empty_permuted empty_strided eq equal erf erfc erfinv exp exp2 expand expand_as expand_copy expm1 exponential
    eye fake_quantize_per_channel_affine fake_quantize_per_channel_affine_cachemask
    fake_quantize_per_channel_affine_cachemask_backward fake_quantize_per_tensor_affine
    fake_quantize_per_tensor_affine_cachemask fake_quantize_per_tensor_affine_cachemask_backward
    feature_alpha_dropout feature_dropout fft_fft fft_fft2 fft_fftfreq fft_fftn fft_fftshift fft_hfft fft_hfft2
    fft_hfftn fft_ifft fft_ifft2 fft_ifftn fft_ifftshift fft_ihfft fft_ihfft2 fft_ihfftn fft_irfft fft_irfft2
    fft_irfftn fft_rfft fft_rfft2 fft_rfftfreq fft_rfftn fill fix flatten flip fliplr flipud float_power floor
    floor_divide fmax fmin fmod frac fractional_max_pool2d fractional_max_pool2d_backward fractional_max_pool3d
    fractional_max_pool3d_backward frexp frobenius_norm full full_like gather gcd ge gelu gelu_backward geometric
    geqrf ger glu glu_backward gradient greater greater_equal grid_sampler grid_sampler_2d
    grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward group_norm gru gru_cell gt hamming_window
    hann_window hardshrink hardshrink_backward hardsigmoid hardsigmoid_backward hardswish hardswish_backward
    hardtanh hardtanh_backward heaviside hinge_embedding_loss histc histogram histogramdd hsplit hstack huber_loss
    huber_loss_backward hypot i0 igamma igammac im2col imag index index_add index_copy index_fill index_put
    index_reduce index_select inner instance_norm inverse is_complex is_conj is_floating_point is_neg is_nonzero
    is_same_size is_signed isclose isfinite isin isinf isnan isneginf isposinf isreal istft item kaiser_window
    kl_div kron kthvalue l1_loss layer_norm lcm ldexp le leaky_relu leaky_relu_backward lerp less less_equal
    lgamma lift_fresh lift_fresh_copy linalg_cholesky linalg_cholesky_ex linalg_cond linalg_cross linalg_det
    linalg_diagonal linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_householder_product linalg_inv
    linalg_inv_ex linalg_lstsq linalg_lu linalg_lu_factor linalg_lu_factor_ex linalg_lu_solve linalg_matmul
    linalg_matrix_exp linalg_matrix_norm linalg_matrix_power linalg_matrix_rank linalg_multi_dot linalg_norm
    linalg_pinv linalg_qr linalg_slogdet linalg_solve linalg_solve_ex linalg_solve_triangular linalg_svd
    linalg_svdvals linalg_tensorinv linalg_tensorsolve linalg_vander linalg_vecdot linalg_vector_norm linear
    linspace log log10 log1p log2 log_normal log_sigmoid log_sigmoid_backward log_sigmoid_forward log_softmax
    logaddexp logaddexp2 logcumsumexp logdet logical_and logical_not logical_or logical_xor logit logit_backward
    logspace logsumexp lstm lstm_cell lt lu_solve lu_unpack mH mT margin_ranking_loss masked_fill masked_scatter
    masked_scatter_backward masked_select masked_select_backward matmul matrix_H matrix_exp matrix_power max
    max_pool1d max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool2d_with_indices_backward
    max_pool3d max_pool3d_with_indices max_pool3d_with_indices_backward max_unpool2d max_unpool3d maximum mean
    median meshgrid min minimum mish mish_backward mm mode moveaxis movedim mse_loss mse_loss_backward msort mul
    multi_margin_loss multi_margin_loss_backward multilabel_margin_loss multilabel_margin_loss_backward
    multilabel_margin_loss_forward multinomial multiply mv mvlgamma nan_to_num nanmean nanmedian nanquantile
    nansum narrow narrow_copy native_batch_norm native_batch_norm_backward native_dropout native_dropout_backward
    native_group_norm native_group_norm_backward native_layer_norm native_layer_norm_backward ne neg negative
    new_empty new_empty_strided new_full new_ones new_zeros nextafter nll_loss nll_loss2d nll_loss2d_backward
    nll_loss2d_forward nll_loss_backward nll_loss_forward nll_loss_nd nonzero nonzero_numpy nonzero_static norm
    norm_except_dim normal normal_functional not_equal nuclear_norm numel numpy_T one_hot ones ones_like orgqr ormqr
    outer pad pad_sequence pairwise_distance pdist permute permute_copy pinverse pixel_shuffle pixel_unshuffle poisson
    poisson_nll_loss polar polygamma positive pow prelu prod put qr quantile rad2deg rand rand_like randint
    randint_like randn randn_like random randperm range ravel real reciprocal reflection_pad1d
    reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward reflection_pad3d
    reflection_pad3d_backward relu relu6 remainder renorm repeat repeat_interleave replication_pad1d
    replication_pad1d_backward replication_pad2d replication_pad2d_backward replication_pad3d
    replication_pad3d_backward reshape reshape_as resolve_conj resolve_neg rms_norm rnn_relu rnn_relu_cell
    rnn_tanh rnn_tanh_cell roll rot90 round row_stack rrelu rrelu_with_noise_backward rsqrt rsub scalar_tensor
    scaled_dot_product_attention scatter scatter_add scatter_reduce searchsorted segment_reduce select
    select_backward select_copy select_scatter selu sgn sigmoid sigmoid_backward sign signbit silu silu_backward
    sin sinc sinh size slice slice_backward slice_copy slice_scatter slogdet smooth_l1_loss
    smooth_l1_loss_backward soft_margin_loss soft_margin_loss_backward softmax softplus softplus_backward
    softshrink softshrink_backward sort special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0
    special_bessel_y1 special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
    special_chebyshev_polynomial_w special_digamma special_entr special_erf special_erfc special_erfcx
    special_erfinv special_exp2 special_expit special_expm1 special_gammainc special_gammaincc special_gammaln
    special_hermite_polynomial_h special_hermite_polynomial_he special_i0 special_i0e special_i1 special_i1e
    special_laguerre_polynomial_l special_legendre_polynomial_p special_log1p special_log_ndtr special_log_softmax
    special_logit special_logsumexp special_modified_bessel_i0 special_modified_bessel_i1
    special_modified_bessel_k0 special_modified_bessel_k1 special_multigammaln special_ndtr special_ndtri
    special_polygamma special_psi special_round special_scaled_modified_bessel_k0
    special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t
    special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v
    special_shifted_chebyshev_polynomial_w special_sinc special_softmax special_spherical_bessel_j0
    special_xlog1py special_xlogy special_zeta split split_copy split_with_sizes split_with_sizes_copy sqrt square
    squeeze squeeze_copy stack std std_mean stft storage_offset stride sub subtract sum sum_to_size svd swapaxes
    swapdims sym_constrain_range sym_constrain_range_for_size sym_is_contiguous sym_numel sym_size
    sym_storage_offset sym_stride t t_copy take take_along_dim tan tanh tanh_backward tensor_split tensordot
    threshold threshold_backward tile to topk trace transpose transpose_copy trapezoid trapz triangular_solve tril
    tril_indices triplet_margin_loss triu triu_indices true_divide trunc type_as unbind unbind_copy unflatten
    unfold unfold_backward unfold_copy uniform unique_consecutive unique_dim unique_dim_consecutive unsafe_chunk
    unsafe_split unsafe_split_with_sizes unsqueeze unsqueeze_copy upsample_bicubic2d upsample_bicubic2d_backward
    upsample_bilinear2d upsample_bilinear2d_backward upsample_linear1d upsample_linear1d_backward
    upsample_nearest1d upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward
    upsample_nearest3d upsample_nearest3d_backward upsample_trilinear3d upsample_trilinear3d_backward vander var
    var_mean vdot view view_as view_as_complex view_as_complex_copy view_as_real view_as_real_copy view_copy
    vsplit vstack where xlogy zero zeros zeros_like
    """
)


def may_be_called_by_files(namespace: str, name: str) -> bool:
    """Whether a file may call operators of this name, with any overload."""
    if namespace == COLLECTIVES:
        return name in _COLLECTIVES
    return name in _ATEN if namespace == "aten" else namespace not in _REFUSED_NAMESPACES


def is_of_numbers_alone(operator: Any) -> bool:
    """Whether a torch operator has no tensors: TorchScript's arithmetic, which divides by zero unchecked."""
    schema = operator._schema
    types = [str(each.type) for each in (*schema.arguments, *schema.returns)]
    return schema.name.startswith("aten::") and bool(schema.returns) and not any("Tensor" in each for each in types)


def is_checked(target: object) -> bool:
    """Whether calls of an operator must be checked first."""
    return isinstance(target, OpOverload) and target._schema.name.removeprefix("aten::") in RULES


@cache
def checked(operator: OpOverload) -> Callable[..., Any]:
    """The operator, which raises if its arguments are invalid. Fake tensors are not checked: they have no data."""
    name = operator._schema.name.removeprefix("aten::")
    rule = RULES[name]

    def call(*args: Any, **kwargs: Any) -> Any:
        given = {each.name: each.default_value for each in operator._schema.arguments}
        given |= dict(zip(given, args, strict=False)) | kwargs
        if not any(map(is_fake, given.values())) and not rule(given):
            raise InputValueError(
                f"{operator} was called with arguments that do not fit together.",
                why="it would read or write outside of its tensors",
                fix="Get an intact copy of the program, or pass the inputs that it was made for.",
            )
        return operator(*args, **kwargs)

    call.__name__ = call.__qualname__ = f"checked_{name}"
    return call


def check_calls(graph: fx.Graph) -> None:
    """Replace operators that do not check their arguments by checked ones, in this graph."""
    for node in graph.nodes:
        if is_checked(node.target):
            node.target = checked(node.target)


def with_checked_calls(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of the module and of its control-flow graphs with checked calls; the module itself if it needs none."""
    children = {name: child for name, child in module.named_children() if isinstance(child, fx.GraphModule)}
    copies = {name: with_checked_calls(child) for name, child in children.items()}
    is_same = all(copies[name] is children[name] for name in children)
    if is_same and not any(is_checked(node.target) for node in module.graph.nodes):
        return module
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    check_calls(graph)
    copy = fx.GraphModule(module, graph, type(module).__name__)
    for name, child in copies.items():
        copy.add_module(name, child)
    return copy
