"""The smallest model of every family of ``timm``, on small images; the names are empty where timm is not installed."""

import functools
import importlib.util
import inspect
import itertools
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from tests.models.examples import Example

INSTALLED = importlib.util.find_spec("timm") is not None
# Family (a module of timm.models) → its model with the fewest parameters.
SMALLEST = {
    "beit": "beit_base_patch16_224",
    "byoanet": "halonet_h1",
    "byobnet": "test_byobnet",
    "cait": "cait_xxs24_224",
    "coat": "coat_tiny",
    "convit": "convit_tiny",
    "convmixer": "convmixer_768_32",
    "convnext": "test_convnext",
    "cpubone": "cpubone_nano",
    "crossvit": "crossvit_tiny_240",
    "csatv2": "csatv2",
    "cspnet": "cs3darknet_focus_s",
    "davit": "davit_tiny",
    "deepseek_vit": "deepseek_vit_412m",
    "deit": "deit_tiny_patch16_224",
    "densenet": "densenet121",
    "dla": "dla46x_c",
    "dpn": "dpn48b",
    "edgenext": "edgenext_xx_small",
    "efficientformer": "efficientformer_l1",
    "efficientformer_v2": "efficientformerv2_s0",
    "efficientnet": "test_efficientnet",
    "efficientvim": "efficientvim_m1",
    "efficientvit_mit": "efficientvit_b0",
    "efficientvit_msra": "efficientvit_m0",
    "eva": "vit_tiny_patch16_dinov3_qkvb",
    "fasternet": "fasternet_t0",
    "fastvit": "fastvit_t8",
    "focalnet": "focalnet_tiny_srf",
    "gcvit": "gcvit_xxtiny",
    "gemma4_vit": "gemma4_vit_167m",
    "ghostnet": "ghostnet_050",
    "hardcorenas": "hardcorenas_b",
    "hgnet": "hgnetv2_b0",
    "hiera": "hiera_tiny_224",
    "hieradet_sam2": "sam2_hiera_tiny",
    "hrnet": "hrnet_w18_small",
    "iformer": "iformer_t",
    "inception_next": "inception_next_atto",
    "inception_resnet_v2": "inception_resnet_v2",
    "inception_v3": "inception_v3",
    "inception_v4": "inception_v4",
    "lcnetv2": "lcnetv2_small",
    "levit": "levit_128s",
    "lowformer": "lowformer_b0",
    "mambaout": "test_mambaout",
    "maxxvit": "maxvit_pico_rw_256",
    "metaformer": "poolformerv2_s12",
    "mlp_mixer": "gmlp_ti16_224",
    "mobilenetv3": "mobilenetv3_small_050",
    "mobilenetv5": "mobilenetv5_base",
    "mobilevit": "mobilevit_xxs",
    "mvitv2": "mvitv2_tiny",
    "naflexvit": "naflexvit_base_patch16_parfac_gap",
    "nasnet": "nasnetalarge",
    "nest": "nest_tiny",
    "nextvit": "nextvit_small",
    "nfnet": "test_nfnet",
    "pit": "pit_ti_224",
    "pnasnet": "pnasnet5large",
    "pvt_v2": "pvt_v2_b0",
    "qwen3_vit": "qwen3_vit_88m",
    "rdnet": "rdnet_tiny",
    "regnet": "regnetx_002",
    "repghost": "repghostnet_050",
    "repvit": "repvit_m1",
    "res2net": "res2next50",
    "resnest": "resnest14d",
    "resnet": "test_resnet",
    "resnetv2": "resnetv2_18",
    "rexnet": "rexnet_100",
    "selecsls": "selecsls42",
    "senet": "legacy_seresnet18",
    "sequencer": "sequencer2d_s",
    "shvit": "shvit_s1",
    "sknet": "skresnet18",
    "starnet": "starnet_s050",
    "swiftformer": "swiftformer_xs",
    "swin_transformer": "swin_tiny_patch4_window7_224",
    "swin_transformer_v2": "swinv2_tiny_window8_256",
    "swin_transformer_v2_cr": "swinv2_cr_tiny_224",
    "tiny_vit": "tiny_vit_5m_224",
    "tnt": "tnt_s_legacy_patch16_224",
    "tresnet": "tresnet_m",
    "twins": "twins_svt_small",
    "vgg": "vgg11",
    "visformer": "visformer_tiny",
    "vision_transformer": "test_vit",
    "vision_transformer_hybrid": "vit_tiny_r_s16_p8_224",
    "vision_transformer_relpos": "vit_srelpos_small_patch16_224",
    "vision_transformer_sam": "samvit_base_patch16_224",
    "vitamin": "vitamin_small_224",
    "volo": "volo_d1_224",
    "vovnet": "vovnet39a",
    "xception": "legacy_xception",
    "xception_aligned": "xception41p",
    "xcit": "xcit_nano_12_p8_224",
}
# What timm names at import for images and datasets. No model uses any of it, and not every torch has a torchvision.
_UNUSED = ("torchvision", "PIL")


class _Anything(type):
    """A class with every attribute."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})


class _UnusedModules:
    """Finds a module full of placeholders for every name below one that is not installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in _UNUSED else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__version__ = "0.0"
        module.__getattr__ = lambda name: getattr(_Anything("module", (), {}), name)  # type: ignore[method-assign]


@functools.cache
def load_timm() -> Any:
    """The package, with placeholders in the place of the image libraries for as long as it takes to import it."""
    finder = _UnusedModules()
    sys.meta_path.append(finder)
    try:
        import timm
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.split(".")[0] in _UNUSED]:
            if (
                isinstance(getattr(sys.modules[name], "__spec__", None), ModuleSpec)
                and sys.modules[name].__spec__.loader is finder
            ):
                del sys.modules[name]
    return timm


def timm_example(family: str) -> Example:
    """The smallest model of a family, in eval mode, and a batch of two images of the smallest size it takes."""
    timm = load_timm()
    problem: Exception | None = None
    for size in (64, 96, 128, 192, 224, 256, None):
        # Models of convolutions alone take any size and have no argument for it.
        sizes = ({"img_size": size}, {}) if size else ({},)
        for depth, arguments in itertools.product(({"depth": 2}, {"depths": (1, 1, 1, 1)}, {}), sizes):
            try:
                return _example(timm.create_model(SMALLEST[family], num_classes=10, **depth, **arguments), size)
            except Exception as error:  # noqa: BLE001 - whatever a model raises says that the arguments are not for it
                problem = problem or error
    assert problem is not None
    raise problem


def _example(module: Any, size: int | None) -> Example:
    module.eval()
    channels, height, width = module.pretrained_cfg["input_size"]
    shape = (2, channels, size or height, size or width)
    call = {_image_argument(module): torch.randn(shape, generator=torch.Generator().manual_seed(0))}
    with torch.no_grad():
        module(**call)
    return Example(module, call)


def _image_argument(module: torch.nn.Module) -> str:
    return next(iter(inspect.signature(module.forward).parameters))
