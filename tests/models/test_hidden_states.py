"""Hidden states and attentions that transformers collects with hooks of its own: a part of the graph."""

import torch
from transformers import BertConfig, BertModel

import precast

CONFIG = BertConfig(
    vocab_size=32, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
    max_position_embeddings=16, attn_implementation="eager",
)  # fmt: skip


def test_hidden_states_are_collected_in_one_graph():
    torch.manual_seed(0)
    model, ids = BertModel(CONFIG).eval(), torch.randint(0, 32, (2, 6))
    compiled = precast.compile(model, backend="nop", fullgraph=True)
    for _ in range(2):
        ours, theirs = (each(ids, output_hidden_states=True, output_attentions=True) for each in (compiled, model))
        torch.testing.assert_close(ours.hidden_states, theirs.hidden_states)
        torch.testing.assert_close(ours.attentions, theirs.attentions)
    # Its hooks are installed by the first call.
    assert len(precast.variants(compiled)) <= 2
