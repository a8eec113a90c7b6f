"""``save`` and ``load``: programs come back bit for bit, from paths and files, without a second copy of the weights."""

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from torch.fx.traceback import annotate, preserve_node_meta

import precast
import precast.runtime
from precast.artifact import archive
from precast.errors import ArtifactError, ExportError, InputTypeError, InputValueError
from precast.export import Dim, ExportedProgram, export, load, save
from precast.export.serialize.names import target_from_json
from tests.export.models import Everything, Function, Scale

FLAG = {"flag": torch.tensor(True)}
STORED = Path(__file__).parent / "stored"


def round_trip(exported: ExportedProgram) -> ExportedProgram:
    file = io.BytesIO()
    save(exported, file)
    return load(file)


def everything() -> ExportedProgram:
    return export(Everything(), (torch.ones(3, 4),), FLAG, dynamic_shapes={"x": {0: Dim("batch")}, "flag": None})


def test_a_program_comes_back_equal(tmp_path):
    exported = everything()
    save(exported, tmp_path / "program.pt2")
    loaded = load(tmp_path / "program.pt2")
    assert str(loaded) == str(exported)
    assert loaded.graph_signature == exported.graph_signature
    assert loaded.module_call_graph == exported.module_call_graph
    assert loaded.range_constraints == exported.range_constraints
    assert loaded.dialect == exported.dialect
    x, results = torch.randn(5, 4), []
    for each in (exported, loaded):
        torch.manual_seed(0)
        results.append(each.module()(x, **FLAG))
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_a_new_process_computes_the_same_bits(tmp_path):
    exported = export(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()), (torch.ones(2, 4),))
    save(exported, tmp_path / "program.pt2")
    x = torch.randn(2, 4)
    torch.save({"x": x, "y": exported.module()(x), "text": str(exported)}, tmp_path / "expected.pt")
    code = (
        "import sys, torch; from precast.export import load;"
        "e = torch.load(sys.argv[2]); p = load(sys.argv[1]);"
        "assert torch.equal(p.module()(e['x']), e['y']); assert str(p) == e['text']"
    )
    command = [sys.executable, "-c", code, tmp_path / "program.pt2", tmp_path / "expected.pt"]
    subprocess.run(command, check=True)


def test_provenance_comes_back():
    exported = everything()
    for before, after in zip(exported.graph.nodes, round_trip(exported).graph.nodes, strict=True):
        assert after.stack_trace == before.stack_trace
        assert after.meta.get("nn_module_stack") == before.meta.get("nn_module_stack")
        assert after.meta.get("torch_fn") == before.meta.get("torch_fn")


def test_metadata_of_users_comes_back():
    class Branching(torch.nn.Module):
        def forward(self, x):
            with annotate({"stage": 1}):
                x = x * 2
            return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,))

    with preserve_node_meta():
        exported = export(Branching(), (torch.ones(2),))
    loaded = round_trip(exported)
    assert [node.meta["custom"] for node in loaded.graph.nodes if "custom" in node.meta] == [{"stage": 1}]
    node = next(iter(loaded.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor)))
    node.meta["custom"] = {"kept in this process": object()}
    assert round_trip(loaded).graph_signature == loaded.graph_signature


def test_a_loaded_program_can_go_on():
    loaded = round_trip(everything())
    assert round_trip(loaded.run_decompositions()).dialect == "ATEN"
    assert str(round_trip(loaded)) == str(loaded)
    assert str(export(loaded.module(), *loaded.example_inputs, dynamic_shapes={"x": {0: Dim("batch")}, "flag": None}))


def test_example_inputs_come_back():
    args, kwargs = round_trip(everything()).example_inputs
    assert torch.equal(args[0], torch.ones(3, 4))
    assert kwargs["flag"].item() is True


ALL_DTYPES = [
    dtype
    for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    if not str(dtype).startswith(("torch.q", "torch.bits", "torch.int1", "torch.uint1", "torch.float4"))
    and not any(str(dtype) in (f"torch.{sign}int{bits}") for sign in ("", "u") for bits in range(2, 8))
]


@pytest.mark.parametrize("dtype", sorted(ALL_DTYPES, key=str), ids=str)
def test_every_dtype(dtype):
    class Holding(torch.nn.Module):
        def __init__(self):
            super().__init__()
            data = torch.arange(6, dtype=torch.uint8).repeat(dtype.itemsize)
            self.register_buffer("tensor", data.view(dtype).reshape(2, 3).clone())

        def forward(self, x):
            return x, self.tensor.view(-1)

    module = Holding()
    loaded = round_trip(export(module, (torch.ones(1),)))
    assert loaded.state_dict["tensor"].dtype == dtype
    assert torch.equal(loaded.state_dict["tensor"].view(torch.uint8), module.tensor.view(torch.uint8))


class Layouts(torch.nn.Module):
    """Tensors that share memory, have gaps, are transposed, empty or scalar."""

    def __init__(self) -> None:
        super().__init__()
        base = torch.arange(24.0)
        self.weight = torch.nn.Parameter(torch.randn(3, 4).t())
        self.register_buffer("whole", base)
        self.register_buffer("part", base[4:16].view(3, 4))
        self.register_buffer("columns", base.view(4, 6)[:, ::2])
        self.register_buffer("empty", torch.empty(0, 3))
        self.register_buffer("scalar", torch.tensor(3))
        self.register_buffer("expanded", torch.ones(1).expand(5))
        self.register_buffer("conjugate", torch.tensor([1 + 2j]).conj())

    def forward(self, x):
        used = (self.whole, self.part, self.columns, self.empty, self.scalar, self.expanded, self.conjugate)
        return x @ self.weight, [each.sum() for each in used]


def test_layouts_and_aliases_come_back():
    module = Layouts()
    exported = export(module, (torch.ones(2, 4),))
    loaded = round_trip(exported)
    for name, tensor in module.state_dict().items():
        again = loaded.state_dict[name]
        assert again.shape == tensor.shape, name
        assert again.stride() == tensor.stride(), name
        assert torch.equal(again, tensor), name
    state = loaded.state_dict
    assert state["part"].untyped_storage().data_ptr() == state["whole"].untyped_storage().data_ptr()
    with torch.no_grad():
        state["whole"].fill_(7)
    assert state["part"].eq(7).all()
    assert loaded.state_dict["weight"].requires_grad
    x = torch.randn(2, 4)
    assert torch.equal(round_trip(exported).module()(x)[0], module(x)[0])


@pytest.mark.parametrize("kind", ["negated", "negated and spread", "conjugate"])
def test_state_that_torch_negates_or_conjugates_lazily(tmp_path, kind):
    numbers = torch.tensor([1 + 2j, 3 - 4j, 5j]).conj()
    state = {"negated": numbers.imag, "negated and spread": numbers.imag[1:2].expand(3), "conjugate": numbers}[kind]
    assert state.is_neg() or state.is_conj()

    class Uses(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("state", state)
            self.constant = state

        def forward(self, x):
            return torch.view_as_real((x * self.state + self.constant) * (1 + 1j))

    x = torch.tensor([1.0, 2.0, 3.0])
    program = export(Uses(), (x,))
    wanted = Uses()(x)
    torch.testing.assert_close(round_trip(program).module()(x), wanted)
    precast.package(program, path=tmp_path / "uses.precast")
    torch.testing.assert_close(precast.runtime.load(tmp_path / "uses.precast")(x), wanted)


def test_tied_parameters_stay_tied_and_are_stored_once():
    exported = everything()
    file = io.BytesIO()
    save(exported, file)
    loaded = load(file)
    assert loaded.state_dict["again.weight"] is loaded.state_dict["linear.weight"]
    assert loaded.module().again.weight is loaded.module().linear.weight


def test_weights_are_mapped_and_private(tmp_path):
    path = tmp_path / "program.pt2"
    save(export(Scale(), (torch.ones(3),)), path)
    before = path.read_bytes()
    weight = load(path).state_dict["weight"]
    with torch.no_grad():
        weight.add_(1)
    assert path.read_bytes() == before
    maps = Path("/proc/self/maps")
    if maps.exists():
        ranges = [line.split()[0].split("-") for line in maps.read_text().splitlines() if str(path) in line]
        assert any(int(start, 16) <= weight.data_ptr() < int(stop, 16) for start, stop in ranges)


def test_weights_can_be_taken_on_trust(tmp_path):
    path = tmp_path / "program.pt2"
    save(export(Scale(), (torch.ones(3),)), path)
    data = bytearray(path.read_bytes())
    weight = torch.arange(3.0).numpy().tobytes()
    data[data.index(weight) + 4] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="SHA-256"):
        load(path)
    assert load(path, check_weights=False).state_dict["weight"].shape == (3,)


def test_members_over_four_gigabytes_have_longer_headers(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "_LARGE", 0)
    exported = export(Scale(), (torch.ones(3),))
    save(exported, tmp_path / "program.pt2")
    assert str(load(tmp_path / "program.pt2")) == str(exported)


def test_files_that_cannot_seek():
    class Pipe(io.BytesIO):
        def seekable(self):
            return False

        def seek(self, *_):
            raise io.UnsupportedOperation

    file = Pipe()
    exported = export(Scale(), (torch.ones(3),))
    save(exported, file)
    assert str(load(io.BytesIO(file.getvalue()))) == str(exported)


def test_equal_programs_give_equal_files():
    first, second = io.BytesIO(), io.BytesIO()
    exported = export(Scale(), (torch.ones(3),))
    save(exported, first)
    save(exported, second)
    assert first.getvalue() == second.getvalue()


def test_no_pickle_in_the_file(tmp_path):
    save(everything(), tmp_path / "program.pt2")
    with zipfile.ZipFile(tmp_path / "program.pt2") as file:
        names = file.namelist()
    assert names == [
        "manifest.json", "program.json", "weights.safetensors", "constants.safetensors", "example_inputs.safetensors",
    ]  # fmt: skip


def test_other_tools_can_read_the_weights(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    module = Scale()
    save(export(module, (torch.ones(3),)), tmp_path / "program.pt2")
    with zipfile.ZipFile(tmp_path / "program.pt2") as file:
        tensors = safetensors.load(file.read("weights.safetensors"))
    assert torch.equal(tensors["weight"], module.weight)


def test_extra_files(tmp_path):
    path = tmp_path / "program.pt2"
    save(export(Scale(), (torch.ones(3),)), str(path), extra_files={"notes/a.txt": "grün", "b.txt": ""})
    asked, every = {"notes/a.txt": ""}, {}
    load(str(path), extra_files=asked)
    load(path, extra_files=every)
    assert asked == {"notes/a.txt": "grün"}
    assert every == {"notes/a.txt": "grün", "b.txt": ""}
    with pytest.raises(ArtifactError, match=r"no extra file 'c\.txt'"):
        load(path, extra_files={"c.txt": ""})


@pytest.mark.parametrize("name", ["../a", "/a", "a//b", "", "ä.txt"])
def test_names_of_extra_files_are_plain(name):
    with pytest.raises(InputValueError, match="cannot name an extra file"):
        save(export(Scale(), (torch.ones(3),)), io.BytesIO(), extra_files={name: ""})


def test_extra_files_are_text():
    with pytest.raises(InputTypeError, match="is of type bytes"):
        save(export(Scale(), (torch.ones(3),)), io.BytesIO(), extra_files={"a": b""})


def test_opset_versions():
    file = io.BytesIO()
    save(export(Scale(), (torch.ones(3),)), file, opset_version={"aten": 10})
    load(file, expected_opset_version={"aten": 10})
    with pytest.raises(ArtifactError, match="version 10 of the operators 'aten'"):
        load(file, expected_opset_version={"aten": 11})


def test_only_programs_are_saved():
    with pytest.raises(TypeError, match="given an object of type Scale"):
        save(Scale(), io.BytesIO())


def test_only_files_are_written_and_read():
    with pytest.raises(InputTypeError, match="to write to"):
        save(export(Scale(), (torch.ones(3),)), 3)
    with pytest.raises(ArtifactError, match="given an object of type int"):
        load(3)


def test_tensors_without_data_are_saved_as_descriptions():
    module, file = Scale().to("meta"), io.BytesIO()
    save(export(module, (torch.ones(3, device="meta"),)), file)
    for name, tensor in load(file).state_dict.items():
        given = module.get_parameter(name)
        assert (tensor.device.type, tensor.shape, tensor.dtype) == ("meta", given.shape, given.dtype)


def test_sparse_examples_are_refused():
    exported = export(Scale(), (torch.ones(3),))
    exported.constants["extra"] = torch.eye(2).to_sparse()
    with pytest.raises(ExportError, match="sparse"):
        save(exported, io.BytesIO())


def test_an_operator_that_is_not_loaded_is_named():
    library = torch.library.Library("precast_test_save", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    library.impl("twice", lambda x: torch.empty_like(x), "Meta")
    file = io.BytesIO()
    save(export(Function(lambda x: torch.ops.precast_test_save.twice(x)), (torch.ones(2),)), file)
    assert load(file).module()(torch.ones(2)).tolist() == [2, 2]
    with pytest.raises(ArtifactError, match=r"precast_test_lost\.twice\.default, which is unknown here"):
        target_from_json("precast_test_lost.twice.default")


@pytest.mark.parametrize("path", sorted(STORED.glob("*.pt2")), ids=lambda path: path.stem)
def test_files_of_every_version_still_load(path):
    loaded = load(path)
    args, kwargs = loaded.example_inputs
    result = loaded.module()(*args, **kwargs)
    torch.testing.assert_close(result["loss"], torch.tensor(2.75))
    assert loaded.run_decompositions().dialect == "ATEN"


def test_sizes_that_turned_out_equal():
    class Sum(torch.nn.Module):
        def forward(self, x, y):
            return x + y if x.shape[0] % 2 == 0 else x

    auto = Dim.AUTO
    arguments = (torch.ones(4), torch.ones(4))
    loaded = round_trip(export(Sum(), arguments, dynamic_shapes={"x": {0: auto}, "y": {0: auto}}))
    assert loaded.module()(torch.ones(6), torch.ones(6)).tolist() == [2.0] * 6
    with pytest.raises(ValueError, match="does not hold"):
        loaded.module()(torch.ones(5), torch.ones(5))


def test_an_example_that_begins_inside_its_storage():
    rows = torch.randn(5, 4)[2:]
    ((loaded,), _) = round_trip(export(torch.nn.ReLU(), (rows,))).example_inputs
    torch.testing.assert_close(loaded, rows)


@pytest.mark.parametrize(
    "name", ["conv1'", 'a"b', "a\\b", "a\nb", "class", "self", "my layer", "🙂", "é", "\ud800", "x" * 2000]
)
def test_submodules_may_have_any_name(name):
    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module(name, torch.nn.Linear(2, 2))
            self.add_module("class_", torch.nn.Linear(2, 2))

        def forward(self, x):
            return self._modules[name](x) - self.class_(x)

    module, x = Named(), torch.randn(3, 2)
    exported = export(module, (x,))
    torch.testing.assert_close(exported.module()(x), module(x))
    file = io.BytesIO()
    save(exported, file)
    loaded = load(file)
    torch.testing.assert_close(loaded.module()(x), module(x))
    again = io.BytesIO()
    save(loaded, again)
    assert again.getvalue() == file.getvalue()


def test_an_operator_of_a_reserved_name_before_a_subgraph():
    class Either(torch.nn.Module):
        def forward(self, choice, x):
            return torch.cond(choice, lambda mask: mask.sum(), lambda mask: mask.sum() * 2, ((x > 0) | (x < -1),))

    inputs = (torch.tensor(True), torch.randn(4))
    assert torch.equal(round_trip(export(Either(), inputs)).module()(*inputs), Either()(*inputs))


def test_a_copied_file_may_be_cut(tmp_path):
    path = tmp_path / "program.pt2"
    save(export(Scale(), (torch.ones(3),)), path)
    loaded = load(path, copy=True)
    before = loaded.module()(torch.ones(3))
    path.write_bytes(b"")
    torch.testing.assert_close(loaded.module()(torch.ones(3)), before)
