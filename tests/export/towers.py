"""Small vision towers of transformers with random weights, whose images are of the sizes that a table tells."""

from importlib import import_module
from typing import Any

import torch

_SMALL = {"depth": 2, "num_heads": 2, "patch_size": 4}
TOWERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen2_vl": (
        "Qwen2VisionTransformerPretrainedModel",
        "Qwen2VLVisionConfig",
        {"embed_dim": 32, "hidden_size": 16, "mlp_ratio": 2},
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VisionTransformerPretrainedModel",
        "Qwen2_5_VLVisionConfig",
        {
            "hidden_size": 32,
            "intermediate_size": 48,
            "out_hidden_size": 16,
            "window_size": 16,
            "fullatt_block_indexes": [1],
        },
    ),
    "qwen3_vl": (
        "Qwen3VLVisionModel",
        "Qwen3VLVisionConfig",
        {
            "hidden_size": 32,
            "intermediate_size": 48,
            "out_hidden_size": 16,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0],
        },
    ),
    "glm4v": (
        "Glm4vVisionModel",
        "Glm4vVisionConfig",
        {"hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 16, "image_size": 16},
    ),
}


def tower(name: str) -> tuple[torch.nn.Module, int]:
    """The model, and how many numbers a patch has."""
    model, config, options = TOWERS[name]
    folder = f"transformers.models.{name}"
    made = getattr(import_module(f"{folder}.configuration_{name}"), config)(**_SMALL, **options)
    torch.manual_seed(0)
    patch = made.in_channels * made.temporal_patch_size * made.patch_size**2
    return getattr(import_module(f"{folder}.modeling_{name}"), model)(made).eval(), patch
