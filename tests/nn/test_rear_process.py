"""REAR in a process: forked after use, in threads at once, and interrupted by a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from test_rear import D, T, fed, router, stream

from flyk.nn import REAR, KernelREAR, _solve


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_goes_on_with_what_its_parent_learned():
    """With one thread, as torch's DataLoader has it in workers: its pool of threads does not survive a fork."""
    code = """
import os, sys, time
sys.path.insert(0, "tests/nn")
import torch
from test_rear import fed, router, stream
torch.set_num_threads(2)
h, labels = stream(3000)
whole = fed(h, labels, flush_rows=500)
whole.solve()
module = fed(h[:1700], labels[:1700], flush_rows=500)  # 200 rows wait
if (child := os.fork()) == 0:
    torch.set_num_threads(1)
    module.update(h[1700:], labels[1700:])
    os._exit(0 if torch.allclose(module.solve(), whole.solve()) else 1)
for _ in range(300):
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        break
    time.sleep(0.1)
else:
    os.kill(child, 9)
module.update(h[1700:], labels[1700:])
print("hung" if not done else os.waitstatus_to_exitcode(status), torch.allclose(module.solve(), whole.solve()))
"""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    ran = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "0 True", ran.stdout + ran.stderr


@pytest.mark.parametrize("form", [REAR, KernelREAR])
def test_threads_that_learn_and_route_at_once_lose_nothing_and_count_nothing_twice(form):
    h, labels = stream(3000)
    many, found = form(D, T, 300, ridge=0.5, dtype=torch.float64), {}
    wanted = form(D, T, 300, ridge=0.5, dtype=torch.float64)
    wanted.update(h, labels)
    start = threading.Barrier(4)

    def call(i):
        start.wait()
        for rows, ids in zip(h[i::4].split(70), labels[i::4].split(70), strict=True):
            many.update(rows, ids)
        start.wait()  # rows wait in the buffer, and nobody has solved
        found[i] = many(h[:50])

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(many.counts, wanted.counts)
    for i in range(4):
        assert torch.equal(found[i], found[0])
        torch.testing.assert_close(found[i], wanted(h[:50]), rtol=1e-6, atol=1e-8)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")
def test_a_signal_in_the_middle_of_a_solution_leaves_the_statistics_as_they_were(monkeypatch):
    h, labels = stream(60)
    module, wanted, substitute = fed(h, labels), fed(h, labels).solve(), _solve.substitute

    def interrupted(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return substitute(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(_solve, "substitute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            module.solve()
    assert torch.equal(module.solve(), wanted)


def test_a_signal_in_an_update_counts_no_row_that_was_not_learned(monkeypatch):
    """Between two blocks: those before it are in, those after it are not, and the counts say which."""
    h, labels = stream(60)
    module, flush, times = router(flush_rows=10), REAR.flush, []

    def interrupted(self):
        flush(self)
        times.append(1)
        if len(times) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(module), "flush", interrupted)
        with pytest.raises(KeyboardInterrupt):
            module.update(h, labels)
    learned = fed(h[:30], labels[:30], flush_rows=10)
    assert torch.equal(module.solve(), learned.solve())
    assert torch.equal(module.counts, learned.counts)
