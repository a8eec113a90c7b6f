"""Every architecture of ``transformers`` and one model of every family of ``timm``: small, with random weights."""

from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, model_type_to_module_name
from transformers.models.auto.modeling_auto import MODEL_MAPPING, MODEL_MAPPING_NAMES

from tests.models.calls import first_call_that_runs, sizes_that_change
from tests.models.examples import Example, NotJudgedError
from tests.models.families import HEADS
from tests.models.shrinking import shrunk
from tests.models.timm_models import INSTALLED, SMALLEST, timm_example


def architecture_names() -> list[str]:
    """``transformers/…`` and ``timm/…``: whole models first, then parts of models, such as their vision towers."""
    whole = [name for name in sorted(MODEL_MAPPING_NAMES) if not _whole_of(name)]
    # A model that takes images or sounds is called with text alone, so that its part for text is judged already.
    parts = [name for name in sorted(MODEL_MAPPING_NAMES) if _whole_of(name) and not name.endswith("_text")]
    families = [f"timm/{family}" for family in sorted(SMALLEST)]
    return [f"transformers/{name}" for name in whole] + families + [f"transformers/{name}" for name in parts]


def _whole_of(name: str) -> str | None:
    """The model in whose file a part such as ``clip_vision_model`` is defined; None of a whole model."""
    folder = model_type_to_module_name(name)
    return folder if folder != name and folder in MODEL_MAPPING_NAMES else None


def make_architecture(name: str) -> Example:
    """The model of that name in eval mode, and a call that eager takes."""
    library, _, model = name.partition("/")
    if library == "timm" and not INSTALLED:
        raise NotJudgedError("timm is not installed: run `make timm`")
    try:
        example = timm_example(model) if library == "timm" else _transformers_example(model)
    except NotJudgedError:
        raise
    except Exception as problem:
        raise NotJudgedError(f"{type(problem).__name__}: {problem}") from problem
    _vary_constants(example.module)
    return example


def _vary_constants(module: torch.nn.Module) -> None:
    """Add noise to parameters whose elements are all the same: a router of zeros has no best expert, only ties."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point() and parameter.numel() > 1 and (parameter == parameter.flatten()[0]).all():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)


def _transformers_example(model_type: str) -> Example:
    config = shrunk(CONFIG_MAPPING[model_type])
    model_class: Any = getattr(transformers, HEADS[model_type]) if model_type in HEADS else MODEL_MAPPING[type(config)]
    model_class = model_class[0] if isinstance(model_class, list | tuple) else model_class
    for each in [config, *(value for value in vars(config).values() if hasattr(value, "model_type"))]:
        # A cache of keys and values is an object of its own; here only the forward pass is of interest.
        each.use_cache = False
    module = model_class(config).float().eval()
    make_call = first_call_that_runs(module, config)
    return Example(module, make_call(2, 12), sizes_that_change(make_call), make_call(3, 9))
