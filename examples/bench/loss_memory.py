"""How much memory the loss of a batch of blocks takes, ours or with all logits at once.

    python examples/bench/loss_memory.py plain smollm2 256

prints the bytes by which forward and backward raise the process's high-water mark. Each
measurement needs a process of its own, because the mark never falls.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from shapes import MASK_TOKEN_ID, SHAPES, Shape
from torch.nn.functional import cross_entropy

from specforge_dstill.maths.frozen_head import FrozenHead
from specforge_dstill.maths.linear_loss import linear_loss
from specforge_dstill.options import DstillOptions


def measured(side: str, shape: Shape, anchors: int) -> int:
    """Bytes, from a fresh process."""
    command = [sys.executable, __file__, side, shape.name, str(anchors)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout)


def run_loss(side: str, shape: Shape, anchors: int) -> int:
    """Bytes above what hidden states and head hold, at the peak of forward and backward."""
    device, dtype = torch.device(shape.device), getattr(torch, shape.dtype)
    rows = anchors * (shape.block_size - 1)
    hidden = torch.randn(rows, shape.hidden, device=device).to(dtype).requires_grad_()
    weight = torch.randn(shape.vocabulary, shape.hidden, device=device).to(dtype)
    targets = torch.randint(shape.vocabulary, (rows,), device=device)
    before = _held(device)
    if side == "plain":
        logits = (hidden @ weight.T).float()
        cross_entropy(logits, targets).backward()
    else:
        weights = torch.ones(rows, device=device)
        linear_loss(
            hidden,
            FrozenHead(weight),
            targets,
            weights,
            mask_token_id=MASK_TOKEN_ID,
            rows_per_tile=DstillOptions().rows_per_tile,
        ).numerator.backward()
    return _peak(device) - before


def _held(device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    return _status("VmRSS")


def _peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    # Not getrusage: its mark is inherited from the process that started this one.
    return _status("VmHWM")


def _status(name: str) -> int:
    """A size in bytes from Linux's account of this process."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


if __name__ == "__main__":
    side_, name_, anchors_ = sys.argv[1:]
    print(run_loss(side_, SHAPES[name_], int(anchors_)))
