"""What the names of fields do not tell about single families of ``transformers``: fields of their configurations."""

from typing import Any


def _axes(*sections: int, **others: Any) -> dict[str, Any]:
    rotary = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(sections), **others}
    return {"rope_parameters": rotary}


_WINDOWS = {
    "image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4,
}  # fmt: skip
_SERIES = {"prediction_length": 4, "context_length": 12, "lags_sequence": [1, 2], "num_time_features": 1}

FAMILIES: dict[str, dict[str, Any]] = {
    "autoformer": {**_SERIES, "label_length": 4, "moving_average": 3},
    "bailing_hybrid": {"n_group": 1, "topk_group": 1, "num_experts": 4, "num_experts_per_tok": 2},
    "bamba": {"mamba_n_heads": 8, "attn_layer_indices": [1]},
    "bit": {"num_groups": 4, "embedding_size": 8},
    "data2vec-audio": {"conv_pos_kernel_size": 3, "num_conv_pos_embedding_groups": 2},
    "deepseek_v2": {"n_group": 1, "topk_group": 1, "topk_method": "greedy", "num_experts_per_tok": 2},
    "donut-swin": _WINDOWS,
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2},
    "esm": {"vocab_size": 99, "pad_token_id": 0, "mask_token_id": 60},
    "gemma3n_text": {"intermediate_size": 64, "activation_sparsity_pattern": [0.0, 0.0], "num_kv_shared_layers": 0},
    "glm4v_moe_text": _axes(1, 1, 0, partial_rotary_factor=0.5),
    "glm4v_text": _axes(2, 1, 1),
    "glm_image_text": _axes(2, 1, 1),
    "glm_ocr_text": _axes(2, 1, 1),
    "granitemoehybrid": {"mamba_n_heads": 8, "layer_types": ["mamba", "attention"]},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "hunyuan_vl_text": {"head_dim": 8},
    "informer": _SERIES,
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "kimi_linear": {"num_expert_group": 1, "topk_group": 1, "num_experts": 4, "num_experts_per_token": 2},
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4},
    "mamba2": {"num_heads": 8},
    "maskformer-swin": _WINDOWS,
    "ministral": {"head_dim": 8},
    "nemotron": {"num_key_value_heads": 2},
    "paddleocr_vl_text": _axes(2, 1, 1),
    "qwen2_5_omni_text": _axes(2, 1, 1),
    "qwen2_5_vl_text": _axes(2, 1, 1),
    "qwen2_5_vl_vision": {"window_size": 32, "fullatt_block_indexes": [1]},
    "exaone4_5_vision": {"window_size": 32, "fullatt_block_indexes": [1]},
    "qwen2_vl_text": _axes(2, 1, 1),
    "reformer": {
        "axial_pos_embds_dim": [16, 16], "axial_pos_shape": [4, 3], "attn_layers": ["local", "lsh"],
        "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4, "num_buckets": 2, "num_hashes": 1,
    },
    "swin": _WINDOWS,
    "swinv2": _WINDOWS,
    "time_series_transformer": _SERIES,
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2, "n_mamba_heads": 2,
        "attention_hidden_size": 64, "attention_head_dim": 16,
    },
    "zamba2": {
        "num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2, "n_mamba_heads": 8,
        "mamba_headdim": 8, "mamba_ngroups": 1, "attention_hidden_size": 64, "attention_head_dim": 16,
        "num_mem_blocks": 1,
    },
}  # fmt: skip

# The class with a head on top, for the few that tests of single stages run.
HEADS = {
    "bart": "BartForConditionalGeneration",
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "resnet": "ResNetForImageClassification",
    "t5": "T5ForConditionalGeneration",
    "whisper": "WhisperForConditionalGeneration",
}
