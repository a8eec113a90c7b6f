"""What every model needs, imported once by the process that the others are forked from."""

import logging
import warnings

import torch
import transformers

# Importing a model imports what all models share: attention, caches, generation.
transformers.GPT2Model, transformers.CLIPModel, transformers.Wav2Vec2Model, transformers.T5Model  # noqa: B018
transformers.MambaModel, transformers.MixtralModel  # noqa: B018
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
torch.set_num_threads(1)
