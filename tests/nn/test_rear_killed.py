"""A stream that is killed at any instant, fifty times, goes on from its checkpoint, and ends with the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# One process loads torch; each life is a fork of it that streams, writes checkpoints, and is killed by its parent.
LIVES = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from flyk import checkpoint
from flyk.nn import REAR, TE2Head

folder, kills = Path(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
BATCHES, EVERY = 120, 3

def made():
    torch.manual_seed(0)
    return REAR(16, 4, 64, flush_rows=20), TE2Head(16, 5, 4)

def stream(path):
    rear, head = made()
    optimizer = torch.optim.Adam(head.parameters(), lr=0.01)
    start = 0
    if path.exists():
        state = checkpoint.load(path)
        start = state["batch"]
        rear.load_state_dict(state["rear"])
        head.load_state_dict(state["head"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
    for batch in range(start, BATCHES):
        if batch % 30 == 0:
            head.start_expert(batch // 30)
        h = torch.randn(8, 16)  # from a generator whose state is in the checkpoint
        rear.update(h, batch // 30)
        torch.nn.functional.cross_entropy(head(h), torch.randint(5, (8,))).backward()
        optimizer.step()
        optimizer.zero_grad()
        head.ema_step()
        if (batch + 1) % EVERY == 0:
            checkpoint.save(path, {
                "batch": batch + 1, "rear": rear.state_dict(), "head": head.state_dict(),
                "optimizer": optimizer.state_dict(), "random": torch.get_rng_state(),
            })

def live(path, seconds=None):
    child = os.fork()
    if child == 0:
        try:
            stream(path)
        except BaseException as error:
            print("fault:", repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

whole, killed = folder / "whole.safetensors", folder / "killed.safetensors"
stream(folder / "warm.safetensors")  # what is imported on first use is imported here
began = time.monotonic()
assert live(whole) == 0
life = time.monotonic() - began
draw = random.Random(0)
cut = resumed = 0
while cut < kills:
    if live(killed, draw.uniform(0, life / 4)) == 0:  # it was done: from the start again
        killed.unlink()
    else:
        cut += 1
        resumed += killed.exists()
assert live(killed) == 0
same = whole.read_bytes() == killed.read_bytes()
left = [p.name for p in folder.iterdir() if p.suffix == ".safetensors" and not p.name.startswith(".")]
print(cut, resumed > kills // 3 or resumed, same, sorted(left))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_fifty_times_and_bitwise_the_same(tmp_path):
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", LIVES, str(tmp_path), "50"]
    ran = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "50 True True ['killed.safetensors', 'warm.safetensors', 'whole.safetensors']", (
        ran.stdout + ran.stderr
    )
