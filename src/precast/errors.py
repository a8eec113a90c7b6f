"""The errors of Precast, one small class hierarchy."""


class PrecastError(Exception):
    """Base class of all errors for users: what happened, where in their code, why, and how to fix it."""

    def __init__(self, what: str, *, why: str, fix: str, at: str | None = None):
        self.what, self.why, self.fix, self.at = what, why, fix, at
        where = [f"  at:  {at}"] if at else []
        super().__init__("\n".join([what, *where, f"  why: {why}", f"  fix: {fix}"]))


class InputTypeError(PrecastError, TypeError):
    """An argument has the wrong type.

    Fails: ``capture(3)``, a number cannot be traced.
    Fixed: ``capture(torch.sin, (x,))``.
    """


class InputValueError(PrecastError, ValueError):
    """An argument has the right type, but its value, structure, shape or device is wrong.

    Fails: ``capture(torch.add, (x.to("cpu"), y.to("cuda")))``.
    Fixed: ``capture(torch.add, (x.to("cuda"), y.to("cuda")))``.
    """


class CallMismatchError(InputValueError, RuntimeError, AssertionError):
    """The arguments of a call do not fit the captured program. It has the base classes that PyTorch users expect here.

    Fails: ``export(model, (torch.ones(4),)).module()(torch.ones(5))``.
    Fixed: ``export(model, (torch.ones(4),), dynamic_shapes=({0: Dim("n")},)).module()(torch.ones(5))``.
    """


class ArgumentsError(InputTypeError, InputValueError):
    """A call lacks an argument, or has one that the program does not take.

    Fails: ``model()`` where the program takes ``x``.
    Fixed: ``model(x)``.
    """


class OptionError(PrecastError, ValueError):
    """An option, or the environment variable that sets it, does not exist or has an invalid value.

    Fails: ``Options(random="dice")``.
    Fixed: ``Options(random="philox")``.
    """


class CaptureError(PrecastError, RuntimeError):
    """The program does something that cannot be captured in a graph."""


class DataDependentError(CaptureError):
    """The program uses the value of a tensor in Python, which is only known at run time.

    Fails: ``x if x.sum() > 0 else -x``.
    Fixed: ``torch.where(x.sum() > 0, x, -x)``.
    """


class UnsupportedOpError(CaptureError):
    """An operator cannot run on fake tensors, so the shape of its result is unknown.

    Fails: a custom operator without a fake kernel.
    Fixed: ``torch.library.register_fake("lib::op", shape_function)``.
    """


class StateMutationError(CaptureError):
    """The program assigned a tensor to Python state that outlives the call.

    Fails: ``self.last = x * 2`` inside ``forward``.
    Fixed: ``self.register_buffer("last", …)`` before, ``self.last.copy_(x * 2)`` inside.
    """


class SymbolicShapeError(CaptureError, ValueError):
    """The program contradicts the declared dynamic shapes.

    Fails: ``x.reshape(4, 2)`` where ``x.shape[0]`` was declared dynamic.
    Fixed: ``x.reshape(-1, 2)``, or do not declare that dimension dynamic.
    """


class ExportError(PrecastError, RuntimeError):
    """A program does something that the exported form cannot express.

    Fails: ``aot_export_module(model, (x,), trace_joint=True)``: which output is the loss?
    Fixed: ``aot_export_module(model, (x,), trace_joint=True, output_loss_index=0)``.
    """


class VerifierError(PrecastError, RuntimeError):
    """A program violates an invariant that later stages rely on."""


class NodeMismatchError(VerifierError):
    """The result of a node differs from its traced metadata in dtype, size, strides or device.

    Fails: a fake kernel that says "contiguous" where the real one returns a transposed tensor.
    Fixed: make the fake kernel return ``torch.empty_strided`` with the strides of the real one.
    """


class ToolMissingError(PrecastError, RuntimeError):
    """A required program or library is not installed.

    Fails: ``draw_graph(graph_module, "graph.pdf")`` without graphviz.
    Fixed: ``draw_graph(graph_module, "graph.svg")``, or install graphviz.
    """


class ExtraMissingError(PrecastError, ImportError):
    """A required Python package is not installed; one of Precast's extras installs it.

    Fails: ``precast.compile(model)`` after ``pip install precast``.
    Fixed: ``pip install 'precast[torch]'``.
    """


class MemoryBudgetError(PrecastError, ValueError):
    """No choice of recomputed operators keeps the saved tensors within the budget."""


class FreezeError(PrecastError, RuntimeError):
    """A program with frozen parameters was called for gradients."""


class LoweringError(PrecastError, RuntimeError):
    """An operator has no native rule, where one is required."""


class BuildError(PrecastError, RuntimeError):
    """The C++ compiler is missing, or failed to compile generated code."""


class GpuError(PrecastError, RuntimeError):
    """A GPU, its driver or an NVIDIA library is missing, too old, or not the one that the code was generated for."""


class TrainingError(PrecastError, RuntimeError):
    """Training cannot continue: the loss is NaN, or another process has died."""


class ArtifactError(PrecastError, ValueError):
    """A file is damaged, has an unsupported version, or is not a Precast file; nothing in it was used."""


class MissingFileError(ArtifactError, FileNotFoundError):
    """There is no file at that path."""


class FileWriteError(PrecastError, OSError):
    """A file could not be written: no space, no permission, no such folder. An existing file is unchanged."""


class SignatureError(ArtifactError):
    """The signature of a file is missing, invalid, or made with a key that is not trusted."""


class CacheError(PrecastError, RuntimeError):
    """The cache folder cannot be used: it belongs to another user, is writable by others, or is busy."""


class FrozenModeError(PrecastError, NotImplementedError):
    """A captured module was asked to switch between training and evaluation mode.

    Fails: ``exported.module().eval()``.
    Fixed: ``export(model.eval(), …).module()``.
    """


class OnnxError(PrecastError, RuntimeError):
    """A program cannot be exported to ONNX as requested, or the model lacks something that was requested."""


class OnnxRuleError(OnnxError):
    """Operators of the program have no translation.

    Fails: ``precast.onnx.export(model, (x,))`` where the model calls ``torch.ops.mine.twice``.
    Fixed: ``precast.onnx.export(model, (x,), custom_translation_table={torch.ops.mine.twice.default: twice})``.
    """


class OnnxTypeError(OnnxError, TypeError):
    """A value has a dtype that ONNX does not support."""


class OnnxMismatchError(OnnxError):
    """The exported model computes different numbers than the original program."""
