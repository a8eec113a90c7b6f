"""Default configurations of ``transformers`` → configurations of models that are built and run in a second.

``shrunk(config_class)`` sets sizes by the names of a configuration's fields, in nested configurations too, and lets
the configuration derive the rest again. What the names do not tell is data in ``FAMILIES``.
"""

import re
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from tests.models.families import FAMILIES

VOCABULARY = 99
# Tokens with a meaning (images, ends, padding) get numbers from here on; texts are made of the ones below.
FIRST_SPECIAL_TOKEN = 60

Rule = tuple[re.Pattern[str], Any]


def _rules(table: dict[str, Any]) -> list[Rule]:
    return [(re.compile(pattern), value) for pattern, value in table.items()]


# The first pattern that a whole name matches counts. A number is an upper bound; of a list it is one for every element.
_SIZES = _rules({
    r".*(vocab_size|vocabulary_size)|vocab_size_.*|(num|n)_(text_|audio_)?tokens": VOCABULARY,
    r"type_vocab_size|.*_type_vocab_size": 2,
    r"num_feat_extract_layers|num_adapter_layers|.*_groups|upsample_.*": 10**9,
    r"rotary_dim": 4,
    r"num_hidden_layers|(n|num)_layers?|(en|de)coder_layers?|num_(en|de)coder_layers|depth|.*_num_hidden_layers"
    r"|num_blocks|num_(en|de)coder_blocks_per_stage|.*_(layers|depth)|layers_block_size|num_block_layers"
    r"|num_transformer_blocks|.*num_layers": 2,
    r"depths|num_blocks_per_stage|layers_per_stage|stage_num_blocks|layer_depths|blocks_per_stage": 1,
    r"hidden_sizes|embed_dims|hidden_dims|.*encoder_hidden_sizes": [16, 32, 32, 32, 32, 32],
    r"neck_hidden_sizes": 16,
    r"num_key_value_heads|num_kv_heads|n_kv_heads?|multi_query_group_num|.*_kv_heads|num_key_value_groups"
    r"|.*num_key_value_heads": 2,
    r"num_(query_)?heads|.*(num_attention_heads|attention_heads|n_heads?|num_heads)|num_head|heads": 4,
    r"head_dim|d_kv|d_head|.*_head_dim|kv_channels|attention_head_size|attention_head_dim|head_size|d_key|dim_head": 8,
    r"conv_dim|tdnn_dim": 16,
    r"sizes?_mlp|.*(intermediate_size|intermediate_dim|ffn_dim|ffn_hidden_size|feedforward_dim|ffn_size|mlp_dim)"
    r"|d_ff|n_inner|inner_dim|d_inner|.*ff_dim|dim_feedforward|.*_ffn_.*size|mlp_hidden_size": 64,
    r".*(hidden_size|hidden_dim|d_model|embed_dim|embedding_size|embedding_dim|proj_size|projection_dim|model_dim)"
    r"|n_embd|dim|d_embed|emb_dim|output_dim|.*_hidden_channels|pooler_output_size|lora_rank|.*_lora_rank|hidden_channels"
    r"|proj_dim|latent_dim|.*_latent_dim|bottleneck_.*|fpn_hidden_dim|mask_dim|decoder_dim|.*_embed_size|width"
    r"|codevector_dim|proj_codevector_dim|output_hidden_size|.*_projection_size|d_query|.*_dim_model|mask_feature_size"
    r"|feature_size|.*_proj_dim|classifier_proj_size|input_hidden_size|.*_bottleneck_size|.*_rank": 32,
    r"num_(local_|routed_)?experts|n_routed_experts|moe_num_experts|num_local_experts|.*_num_experts": 4,
    r"num_experts_per_(tok|token)|moe_topk|moe_k|num_selected_experts|top_k|.*experts_top_?k|moe_top_k|expert_k": 2,
    r"n_groups?|topk_group|num_shared_experts|n_shared_experts|first_k_dense_replace|num_expert_group": 1,
    r"image_size|.*_image_size|input_size|img_size|size": 32,
    r"patch_size|vision_patch_size|tile_size": 8,
    r".*(max_position_embeddings|position_embeddings|max_positions|max_source_positions|max_target_positions)"
    r"|n_positions|n_ctx|max_seq_len|max_sequence_length|max_seq_length|seq_length|context_length|max_length"
    r"|num_position_embeddings|position_embedding_size|max_len": 64,
    r"sliding_window|attention_window|window_size|local_attention|chunk_size|block_size|attention_chunk_size": 4,
    r"num_mel_bins|n_mels|num_mels|feature_dim|input_feat_per_channel": 16,
    r"num_frames": 4,
    r"num_queries|num_query_tokens|num_latents|num_object_queries|.*query_length": 8,
    r"mamba_n_heads|linear_num_(key|value)_heads|time_mix_.*_rank": 4,
    r"mamba_d_state|state_size|ssm_state_size|d_state": 8,
    r"mamba_d_head": 8,
    r"num_filters|upsample_initial_channel|stem_channels|stem_width": 8,
    r"codebook_size|num_codevectors_per_group": 16,
})  # fmt: skip

_DROPOUT = re.compile(r".*(dropout|pdrop|layerdrop|drop_path|drop_rate|dropout_rate|drop).*")
_TOKEN = re.compile(r".*token_(id|index)s?|.*_token|.*_token_id_.*")
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
# Lists with one entry a layer, where the kinds of layers are not picked; derived again from the number of layers.
_DERIVED = re.compile(
    r"(.*_)?layer_types|layers_block_type|block_types|attention_layers|stage_names|mlp_only_layers|layer_type_list"
    r"|no_rope_layers|id2label|label2id|.*layer_rope_theta|indexer_types|per_layer_config|mlp_layer_types"
)
_NOT_OURS = {"model_type", "transformers_version", "architectures", "dtype", "_name_or_path", "torch_dtype"}


def shrunk(config_class: type[PreTrainedConfig]) -> PreTrainedConfig:
    """The configuration of a small model of that class, with one layer of each kind, or else with two of any."""
    try:
        return config_class(**_fields(config_class(), pick_layers=True))
    except (ValueError, TypeError, StrictDataclassError):
        # Some derive what a layer is from its number, and accept no list.
        return config_class(**_fields(config_class(), pick_layers=False))


def _fields(config: PreTrainedConfig, *, pick_layers: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in vars(config).items():
        if name in _NOT_OURS or name.startswith("_") or _DERIVED.fullmatch(name):
            continue
        small = _small(name, value, pick_layers=pick_layers)
        if small is not value:
            fields[name] = small
    if pick_layers:
        fields |= _one_layer_of_each_kind(config)
    special = sorted(name for name, value in fields.items() if _TOKEN.fullmatch(name) and isinstance(value, int))
    fields |= {name: _token(name, special.index(name)) for name in special}
    heads, groups = getattr(config, "num_attention_heads", None), getattr(config, "num_key_value_heads", None)
    if isinstance(groups, int) and groups == heads and "num_attention_heads" in fields:
        fields["num_key_value_heads"] = fields["num_attention_heads"]
    fields |= _multi_axis_rotary(config, fields)
    return {**fields, **FAMILIES.get(config.model_type, {})}


def _token(name: str, index: int) -> int:
    return {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}.get(name, FIRST_SPECIAL_TOKEN + index)


def _one_layer_of_each_kind(config: PreTrainedConfig) -> dict[str, Any]:
    """The number of layers, and every list of kinds cut down to the layers that are the first of their kind."""
    fields = vars(config)
    count = next((name for name in _LAYERS if isinstance(fields.get(name), int)), None)
    lists = {
        name: value
        for name, value in fields.items()
        if count
        and isinstance(value, list)
        and len(value) == fields[count]
        and all(isinstance(kind, str) for kind in value)
    }
    if not lists:
        return {}
    kinds = list(zip(*lists.values(), strict=True))
    firsts = [kinds.index(kind) for kind in dict.fromkeys(kinds)][:4]
    chosen = firsts if len(firsts) > 1 else [0, *firsts]
    return {count: len(chosen), **{name: [value[layer] for layer in chosen] for name, value in lists.items()}}


def _multi_axis_rotary(config: PreTrainedConfig, fields: dict[str, Any]) -> dict[str, Any]:
    """Rotary embeddings over several axes share out half of what of a head is rotated."""
    rotary = getattr(config, "rope_parameters", None)
    if not isinstance(rotary, dict) or "mrope_section" not in rotary:
        return {}
    heads = fields.get("num_attention_heads", getattr(config, "num_attention_heads", 4))
    size = fields.get("head_dim") or fields.get("hidden_size", 32) // heads
    half = int(size * rotary.get("partial_rotary_factor", 1.0)) // 2
    third = half // 3
    return {"rope_parameters": {**rotary, "mrope_section": [half - 2 * third, third, third]}}


def _small(name: str, value: Any, *, pick_layers: bool) -> Any:
    if isinstance(value, PreTrainedConfig):
        return type(value)(**_fields(value, pick_layers=pick_layers))
    if name == "apply_spec_augment":
        # It draws with numpy which frames to mask.
        return False
    if isinstance(value, bool | str) or value is None:
        return value
    if _TOKEN.fullmatch(name) and isinstance(value, int):
        return FIRST_SPECIAL_TOKEN if value >= FIRST_SPECIAL_TOKEN else value
    if _DROPOUT.fullmatch(name) and isinstance(value, int | float):
        return 0.0 if value else value
    for pattern, size in _SIZES:
        if pattern.fullmatch(name):
            return _bounded(value, size)
    return value


def _bounded(value: Any, size: Any) -> Any:
    if isinstance(value, list | tuple) and value and all(type(element) is int for element in value):
        sizes = size if isinstance(size, list) else [size] * len(value)
        bounded = [min(element, bound) for element, bound in zip(value, sizes, strict=False)]
        return type(value)(bounded) if bounded != list(value) else value
    bound = size[-1] if isinstance(size, list) else size
    return min(value, bound) if type(value) is int else value
