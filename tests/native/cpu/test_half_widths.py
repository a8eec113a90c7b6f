"""float16 is rounded by functions for registers of each width: loops of any length, beside any type, find theirs."""

import torch

from tests.native.lowering.cases import open_cases


def test_loops_of_any_length_beside_any_type_round_as_eager(tmp_path):
    def function(x, y):
        return (x * 1.1).half(), (y.to(torch.float32) * 0.3).half() * 0.7, x.double().log_softmax(1).half()

    cases = {}
    for length in (3, 4, 8, 15, 100):
        numbers = torch.linspace(-3, 3, 4 * length).view(4, length)
        for other in (torch.int8, torch.float64):
            cases[f"{length}_{str(other)[6:]}"] = (function, [numbers, (numbers * 9).to(other)])
    model = open_cases(cases, tmp_path)
    for name, (_, inputs) in cases.items():
        for mine, expected in zip(model[name](*inputs), function(*inputs), strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-3, atol=1e-4)
