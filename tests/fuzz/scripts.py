"""A failing program as a script of its own, for people and as a test."""

from __future__ import annotations

from tests.fuzz.observe import used_in_loss
from tests.fuzz.workers import Failure

_CHECKS = {
    "inference": """
with torch.no_grad():
    expected, found = module(*copies()), precast.compile(module, dynamic={dynamic})(*copies())
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
""",
    "frozen": """
with torch.no_grad():
    expected, found = module(*copies()), precast.compile(module, options={{"freeze": True}})(*copies())
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
""",
    "training": """
def gradients(call):
    module.zero_grad()
    leaves = [each.requires_grad_(each.is_floating_point()) for each in copies()]
    outputs = call(*{passed})
    used = [outputs[number] for number in {used}]
    sum(each.double().mul(torch.arange(each.numel()).view(each.shape).cos()).sum() for each in used).backward()
    return outputs, [each.grad.clone() for each in (*leaves, *module.parameters()) if each.grad is not None]


expected, found = gradients(module), gradients(precast.compile(module, dynamic={dynamic}))
torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
""",
    "package": """
with tempfile.TemporaryDirectory() as folder:
    path = precast.package(module, tuple(copies()), path=f"{{folder}}/program.precast", samples=False)
    expected, found = module(*copies()), precast.runtime.load(path)(*copies())
    torch.testing.assert_close(tuple(found), expected, rtol=1e-3, atol=1e-3)
""",
}


def script(failure: Failure) -> str:
    """Python text that fails as the program did, if what is checked is a number, or that anything runs at all."""
    mode = "training" if failure.mode == "whole" else failure.mode
    dynamic = "None" if failure.program.other_size is None else "True"
    passed = "[each.clone() for each in leaves]" if failure.seed % 3 == 1 else "leaves"
    package = "import tempfile\n\n" if mode == "package" else ""
    imports = f"{package}import torch\nimport torch.nn.functional as F\n\nimport precast\n"
    imports += "import precast.runtime\n" if mode == "package" else ""
    made = f"torch.manual_seed({failure.seed})\nmodule = Program()\ngiven = inputs()\n"
    copies = "\n\ndef copies():\n    return [each.clone() for each in given]\n\n"
    told = f'"""{failure.mode}, {failure.stage}: {failure.verdict.kind}."""\n\n'
    used = used_in_loss(len(failure.program.outputs), failure.seed)
    check = _CHECKS.get(mode, "").format(dynamic=dynamic, passed=passed, used=used)
    return f"{told}{imports}\n\n{failure.program.text()}\n\n\n{made}{copies}{check}"
