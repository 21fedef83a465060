"""Weights for which a fixed point exists, is unique and is found by iteration: the Perron-Frobenius condition.

"Implicit Graph Neural Networks": Z = P relu(Z) W^T + C is well-posed where lambda_pf(P) * lambda_pf(|W|) < 1, and
lambda_pf(|W|) <= |W|_p for the induced norms. For p = 1 and infinity |W|_p is the largest sum of |W_ij| over a column
or a row, so W is projected onto a ball column by column or row by row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lmc.graph import CSR, spmm


@torch.no_grad()
def perron(P: CSR, rtol: float = 1e-6, max_steps: int = 1000) -> Tensor:
    """An upper bound of lambda_pf(P), P >= 0, by power iteration; one number on P's device.

    max_i (P x)_i / x_i bounds lambda_pf from above for every positive x (Collatz and Wielandt), so the result is an
    upper bound after any number of steps. The iteration starts from diag(P)^-1/2, which is the eigenvector of the GCN
    normalisation.
    """
    rows, loops = P.row_index(), torch.zeros(P.num_rows, dtype=torch.float64, device=P.device)
    on_diagonal = rows == P.indices
    loops[rows[on_diagonal]] = P.data[on_diagonal].double()
    x = loops.rsqrt().where(loops > 0, 1.0).unsqueeze(1)
    P = CSR(P.indptr, P.indices, P.data.double(), P.num_cols)
    bound = torch.tensor(torch.inf, dtype=torch.float64, device=P.device)
    for _ in range(max_steps):
        y = spmm(P, x)
        bound = torch.minimum(bound, (y / x).max())
        if bool(bound - y.norm() / x.norm() <= rtol * bound):
            break
        x = (y / y.max()).clamp_min(1e-30)  # the bound needs x > 0, also where a row of P is zero
    return bound


def onto_l1_ball(rows: Tensor, radius: Tensor) -> Tensor:
    """The nearest matrix whose rows have |row|_1 <= radius; rows inside are returned as they are.

    "Efficient Projections onto the l1-Ball for Learning in High Dimensions": soft-threshold at the t for which the
    row's sum is the radius, which is found from the sorted magnitudes.
    """
    size = rows.abs()
    ordered, _ = size.sort(dim=1, descending=True)
    over = ordered.cumsum(1) - radius
    count = torch.arange(1, rows.shape[1] + 1, device=rows.device, dtype=rows.dtype)
    last = (ordered * count > over).sum(1, keepdim=True).clamp_min(1)  # entries that stay non-zero
    t = over.gather(1, last - 1) / last
    shrunk = rows.sign() * (size - t).clamp_min(0)
    return rows.where(size.sum(1, keepdim=True) <= radius, shrunk)
