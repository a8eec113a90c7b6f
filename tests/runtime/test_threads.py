"""Compiled code runs on the threads that torch has, as many as torch is told to use."""

import os
import subprocess
import sys
import textwrap

_MEASURE = """
    import os, time
    from pathlib import Path
    import torch
    import precast

    def others():
        return [task for task in Path("/proc/self/task").iterdir() if task.name != str(os.getpid())]

    def worked():
        # Nanoseconds on a processor; who has just finished may still look around for more.
        time.sleep(0.3)
        return sum(int((task / "schedstat").read_text().split()[0]) for task in others())

    x = torch.randn(600, 600)
    run = precast.compile(lambda x: (x @ x).softmax(1).sin())
    run(x)
    torch.set_num_threads(3)
    x.exp(), x @ x
    print(len(others()))
    for threads in (3, 5, 1):
        torch.set_num_threads(threads)
        run(x)
        before = worked()
        for _ in range(5):
            run(x)
        print(len(others()), worked() - before)
"""


def test_a_call_runs_on_torchs_threads_and_on_no_more_than_torch_may_use():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(_MEASURE)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    torchs, three, work_of_three, five, _, _, work_of_one = map(int, ran.stdout.split())
    assert three == torchs, "native code has threads beside torch's"
    assert five == torchs + 2
    assert work_of_three > 1_000_000
    assert work_of_one < 100_000, "one thread was allowed, and others worked"
