"""What no entry of a package updates is constant: what follows from it is computed when the package is made."""

import numpy as np
import pytest
import torch
from torch import nn

import precast
import precast.runtime
from precast.errors import InputValueError


def network():
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 5, 2), nn.BatchNorm2d(5),
        nn.Flatten(), nn.Linear(5 * 49, 4),
    )  # fmt: skip
    for layer in layers:
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.running_var, 0.5, 2)
            for each in (layer.running_mean, layer.weight, layer.bias):
                nn.init.normal_(each)
    return layers.eval()


IMAGES = torch.randn(2, 3, 8, 8)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return precast.package(network(), (IMAGES,), path=tmp_path_factory.mktemp("folded") / "network.precast")


def close(result, expected):
    torch.testing.assert_close(torch.as_tensor(result), expected, rtol=1e-4, atol=1e-5)


def test_batch_norms_go_into_convolutions(path):
    loaded = precast.runtime.load(path)
    with torch.no_grad():
        close(loaded(IMAGES), network()(IMAGES))
    loaded.verify()
    assert [name for name in loaded.state if not name.startswith("folded.")] == ["6.weight", "6.bias"]


def test_what_was_folded_cannot_be_assigned_and_the_rest_can(path):
    loaded = precast.runtime.load(path)
    with pytest.raises(InputValueError, match="freeze"):
        loaded.state["1.weight"] = np.ones(8, np.float32)
    model = network()
    model[6].bias.data.fill_(3)
    loaded.state["6.bias"] = np.full(4, 3, np.float32)
    with torch.no_grad():
        close(loaded(IMAGES), model(IMAGES))


def test_without_freezing_all_state_can_be_assigned(tmp_path):
    model = network()
    path = precast.package(model, (IMAGES,), path=tmp_path / "p", options={"freeze": False})
    loaded = precast.runtime.load(path)
    model[1].weight.data.fill_(2)
    loaded.state["1.weight"] = np.full(8, 2, np.float32)
    with torch.no_grad():
        close(loaded(IMAGES), model(IMAGES))


def test_the_program_in_the_file_keeps_the_state_of_the_model(path):
    interpreted = precast.runtime.load(path, allow_native=False)
    with torch.no_grad():
        close(interpreted(IMAGES), network()(IMAGES))
    assert set(precast.export.load(path).state_dict) >= set(dict(network().named_parameters()))


class Scaled(nn.Module):
    """Computes with a table, and with the table itself in another way."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(4, 4))
        self.other = nn.Parameter(torch.randn(4))

    def forward(self, x):
        return x @ (self.table.exp() + 1) + (self.other * 2).sin() + self.table


class Update(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self):
        with torch.no_grad():
            self.model.other.mul_(2)
        return self.model.other.sum()


def test_a_tensor_that_is_read_as_it_is_stays_assignable_in_all_its_uses(tmp_path):
    model, x = Scaled(), torch.randn(3, 4).sum(0).expand(4, 4)
    loaded = precast.runtime.load(precast.package(model, (x,), path=tmp_path / "p"))
    assert sorted(loaded.state) == ["folded.0", "table"]
    loaded.state["table"] = np.zeros((4, 4), np.float32)
    model.table.data.zero_()
    with torch.no_grad():
        close(loaded(x), model(x))


def test_what_an_entry_updates_is_no_constant_of_any(tmp_path):
    model, x = Scaled(), torch.randn(4, 4)
    entries = {"forward": (model, (x,)), "update": (Update(model), ())}
    loaded = precast.runtime.load(precast.package(entries, path=tmp_path / "p"))
    for _ in range(2):
        with torch.no_grad():
            close(loaded["forward"](x), model(x))
            close(loaded["update"](), Update(model)())
    with torch.no_grad():
        close(loaded["forward"](x), model(x))


def test_entries_share_what_was_computed(tmp_path):
    model = network()
    entries = {"two": (model, (IMAGES,)), "one": (model, (IMAGES[:1],))}
    loaded = precast.runtime.load(precast.package(entries, path=tmp_path / "p"))
    assert sum(name.startswith("folded.") for name in loaded.state) == 4
    with torch.no_grad():
        close(loaded["one"](IMAGES[:1]), model(IMAGES[:1]))


def test_a_library_holds_what_its_code_reads_and_no_more(tmp_path):
    sizes = []
    for freeze in (True, False):
        options = {"output_path": tmp_path / f"{freeze}.so", "freeze": freeze}
        path = precast.aot_compile(network(), (IMAGES,), options=options)
        with torch.no_grad():
            close(precast.aot_load(path, "cpu")(IMAGES), network()(IMAGES))
        sizes.append((tmp_path / f"{freeze}.so").stat().st_size)
    assert sizes[0] <= sizes[1] + 4096
