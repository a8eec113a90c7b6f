"""The model of this example: four numbers in, three probabilities out, for any number of rows."""

import torch

import precast


def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 16), torch.nn.GELU(), torch.nn.Linear(16, 3), torch.nn.Softmax(dim=1)
    )
    return model.eval(), (torch.ones(2, 4),), {}, ({0: precast.Dim("rows", min=1, max=1024)},)
