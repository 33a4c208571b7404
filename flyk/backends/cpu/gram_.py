"""gram_ on the CPU: bfloat16 products on the tile unit where there is one, else the matrix library's panels."""

from __future__ import annotations

import torch
from torch import Tensor

from flyk.backends.cpu._library import ISA, product, terms
from flyk.ops.gram_ import add_labels, reference

TILES = "csrc for bfloat16 products (AMX); else" if ISA == "amx" else "no AMX, so bfloat16 products are emulated;"
SERVED = f"{TILES} the reference's GEMM panels of the lower triangle, which PyTorch's library does best"


def gram_(G: Tensor, Q: Tensor, phi: Tensor, labels: Tensor, precision: str = "float32") -> None:
    count = terms(phi.dtype, precision)
    if not count or G.dtype != torch.float32:
        reference(G, Q, phi, labels, precision)
        return
    add_labels(Q, phi, labels)
    # The product of the low parts too: on the diagonal it adds up, and elsewhere it takes a quarter off the error.
    product(phi.t(), phi.t(), G, 4 if count == 3 else count, gram=True)
