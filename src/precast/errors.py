"""Every error that Precast tells a person, as one small family."""


class PrecastError(Exception):
    """A failure told to the user: what happened, where, why, and what to do about it."""

    def __init__(self, what: str, *, why: str, fix: str, at: str | None = None):
        self.what, self.why, self.fix, self.at = what, why, fix, at
        where = [f"  at:  {at}"] if at else []
        super().__init__("\n".join([what, *where, f"  why: {why}", f"  fix: {fix}"]))


class InputTypeError(PrecastError, TypeError):
    """An argument is of the wrong kind.

    Fails: ``capture(3)``, a number cannot be traced.
    Fixed: ``capture(torch.sin, (x,))``.
    """


class InputValueError(PrecastError, ValueError):
    """An argument is of the right kind but its value, tree, shape or device does not fit.

    Fails: ``capture(torch.add, (x.to("cpu"), y.to("cuda")))``.
    Fixed: ``capture(torch.add, (x.to("cuda"), y.to("cuda")))``.
    """


class CallMismatchError(InputValueError, RuntimeError, AssertionError):
    """A call does not fit what a captured program is valid for: PyTorch's users expect it as any of these kinds.

    Fails: ``export(model, (torch.ones(4),)).module()(torch.ones(5))``.
    Fixed: ``export(model, (torch.ones(4),), dynamic_shapes=({0: Dim("n")},)).module()(torch.ones(5))``.
    """


class ArgumentsError(InputTypeError, InputValueError):
    """A call lacks an argument, or has one that the program does not take.

    Fails: ``model()`` where the program takes ``x``.
    Fixed: ``model(x)``.
    """


class OptionError(PrecastError, ValueError):
    """An option, or the environment variable that sets it, has a value that means nothing.

    Fails: ``Options(random="dice")``.
    Fixed: ``Options(random="philox")``.
    """


class CaptureError(PrecastError, RuntimeError):
    """The program ran into something that a graph cannot record."""


class DataDependentError(CaptureError):
    """Python asked for a value that only running the program can give.

    Fails: ``x if x.sum() > 0 else -x``.
    Fixed: ``torch.where(x.sum() > 0, x, -x)``.
    """


class UnsupportedOpError(CaptureError):
    """An operator cannot run on fake tensors, so its result's shape is unknown.

    Fails: a custom operator without a fake kernel.
    Fixed: ``torch.library.register_fake("lib::op", shape_function)``.
    """


class StateMutationError(CaptureError):
    """The program assigned a tensor to Python state that outlives the call.

    Fails: ``self.last = x * 2`` inside ``forward``.
    Fixed: ``self.register_buffer("last", …)`` before, ``self.last.copy_(x * 2)`` inside.
    """


class SymbolicShapeError(CaptureError, ValueError):
    """The program contradicts what the user said about dynamic sizes.

    Fails: ``x.reshape(4, 2)`` where ``x.shape[0]`` was declared dynamic.
    Fixed: ``x.reshape(-1, 2)``, or do not declare that dimension dynamic.
    """


class ExportError(PrecastError, RuntimeError):
    """A program does something that the exported form cannot express.

    Fails: ``aot_export_module(model, (x,), trace_joint=True)``, which output is the loss?
    Fixed: ``aot_export_module(model, (x,), trace_joint=True, output_loss_index=0)``.
    """


class VerifierError(PrecastError, RuntimeError):
    """A program breaks a rule that every later stage relies on."""


class NodeMismatchError(VerifierError):
    """A node computed something else than tracing promised: another dtype, size, stride or device.

    Fails: a fake kernel that says "contiguous" where the real one returns a transposed tensor.
    Fixed: make the fake kernel return ``torch.empty_strided`` with the strides of the real one.
    """


class ToolMissingError(PrecastError, RuntimeError):
    """The request needs a program that is not installed.

    Fails: ``draw_graph(graph_module, "graph.pdf")`` without graphviz.
    Fixed: ``draw_graph(graph_module, "graph.svg")``, or install graphviz.
    """


class ExtraMissingError(PrecastError, ImportError):
    """The request needs a package that one of Precast's extras installs.

    Fails: ``precast.compile(model)`` after ``pip install precast``.
    Fixed: ``pip install 'precast[torch]'``.
    """


class MemoryBudgetError(PrecastError, ValueError):
    """No choice of what to recompute keeps the saved tensors within the bytes allowed."""


class FreezeError(PrecastError, RuntimeError):
    """Gradients were asked of a program whose parameters were made constants."""


class LoweringError(PrecastError, RuntimeError):
    """An operator has no native rule where one is required."""


class BuildError(PrecastError, RuntimeError):
    """The C++ compiler is missing, or refused what we generated."""


class TrainingError(PrecastError, RuntimeError):
    """Training cannot go on: the loss is no number any more, or another process of it has ended."""


class ArtifactError(PrecastError, ValueError):
    """A file is damaged, of another version, or not ours; nothing of it was used."""


class FileWriteError(PrecastError, OSError):
    """A file could not be written: no room, no permission, no such folder. What was there before is there still."""


class SignatureError(ArtifactError):
    """A file's signature is missing, broken, or by someone whom the caller did not name."""


class CacheError(PrecastError, RuntimeError):
    """The cache folder must not or cannot be used: it is another user's, open to others, or busy."""


class FrozenModeError(PrecastError, NotImplementedError):
    """A captured module is asked to switch between training and evaluation.

    Fails: ``exported.module().eval()``.
    Fixed: ``export(model.eval(), …).module()``.
    """


class OnnxError(PrecastError, RuntimeError):
    """A program cannot be told in ONNX as asked, or the model lacks something that the request needs."""


class OnnxRuleError(OnnxError):
    """Operators of the program have no translation.

    Fails: ``precast.onnx.export(model, (x,))`` where the model calls ``torch.ops.mine.twice``.
    Fixed: ``precast.onnx.export(model, (x,), custom_translation_table={torch.ops.mine.twice.default: twice})``.
    """


class OnnxTypeError(OnnxError, TypeError):
    """A value has a dtype that ONNX does not have."""


class OnnxMismatchError(OnnxError):
    """The exported model computes other numbers than the program it was made from."""
