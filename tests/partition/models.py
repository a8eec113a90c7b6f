"""Models to partition: the architectures people train, small, with random weights."""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, ResNetConfig, ResNetModel

from tests.partition.joint_graphs import Joint, trace_joint


def trace_module(module: nn.Module, **inputs: torch.Tensor) -> Joint:
    """Trace a module's first output jointly with the gradients of its parameters."""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def call(*flat: torch.Tensor) -> torch.Tensor:
        values = dict(zip(state, flat, strict=False))
        named = dict(zip(inputs, flat[len(state) :], strict=True))
        output = torch.func.functional_call(module, values, (), named)
        return output if isinstance(output, torch.Tensor) else output[0]

    return trace_joint(call, *state.values(), *inputs.values())


def encoder_stack(layers: int = 2) -> Joint:
    """A stack of post-norm transformer encoder layers, with dropout."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
    module = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).train()
    return trace_module(module, src=torch.randn(2, 16, 32))


def gpt(layers: int = 2, width: int = 32, length: int = 16) -> Joint:
    """GPT-2 with dropout."""
    config = GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=4,
        vocab_size=96,
        n_positions=length,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    mask = torch.full((length, length), -1e9).triu(1).expand(2, 1, length, length)
    module = GPT2LMHeadModel(config).train()
    return trace_module(module, input_ids=torch.randint(0, 96, (2, length)), attention_mask=mask)


def bert(layers: int = 2, width: int = 32, length: int = 16) -> Joint:
    """BERT with dropout."""
    config = BertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=4,
        intermediate_size=4 * width,
        vocab_size=96,
        max_position_embeddings=length,
    )
    mask = torch.zeros(2, 1, length, length)
    module = BertModel(config, add_pooling_layer=False).train()
    return trace_module(module, input_ids=torch.randint(0, 96, (2, length)), attention_mask=mask)


def resnet(depths: tuple[int, ...] = (1, 1), layer_type: str = "basic") -> Joint:
    """A residual network; batch norm takes its running statistics as they are."""
    widths = [16 * 2**index for index in range(len(depths))]
    config = ResNetConfig(embedding_size=16, hidden_sizes=widths, depths=list(depths), layer_type=layer_type)
    return trace_module(ResNetModel(config).eval(), pixel_values=torch.randn(2, 3, 32, 32))


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 16, 3, padding=1)
        self.deep = nn.Conv2d(16, 32, 3, padding=1)
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.out = nn.Conv2d(32, 3, 3, padding=1)
        self.norm = nn.GroupNorm(4, 16)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        skip = F.silu(self.norm(self.down(image)))
        deep = F.silu(self.deep(F.avg_pool2d(skip, 2)))
        return self.out(torch.cat([skip, F.silu(self.up(deep))], dim=1))


def unet() -> Joint:
    """An encoder and a decoder with a skip connection."""
    return trace_module(_UNet(), image=torch.randn(2, 3, 16, 16))
