"""The draw of node-wise sampling: a few entries of every row of a CSR matrix, without replacement.

In plain torch each of Floyd's rounds takes three small launches, and a hop of ten rounds is bound by the time they take
to launch. The Triton kernel reads every row once and writes its slots once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lmc.kernels.availability import tl, triton, triton_available

MAX_FANOUT = 63
"""The largest fan-out the kernel draws: the slots of a row are held in registers."""
NO_DIAGONAL = 2**40
"""The offset of the diagonal entry in a row that has none: larger than every other offset."""

if triton is not None:

    @triton.jit
    def _slots(  # type: ignore[no-untyped-def]
        about_ptr, indices_ptr, rows_ptr, uniform_ptr, slots_ptr, columns_ptr, num,
        K: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        inside = i < num
        row = tl.load(rows_ptr + i, mask=inside, other=0)
        start = tl.load(about_ptr + row * 3, mask=inside, other=0)
        d = tl.load(about_ptr + row * 3 + 1, mask=inside, other=0)
        loop = tl.load(about_ptr + row * 3 + 2, mask=inside, other=0)
        slot = tl.arange(0, WIDTH).to(tl.int64)[None, :]  # slot 0 holds the diagonal, slot j + 1 the draw of round j
        drawn = tl.zeros((ROWS, WIDTH), dtype=tl.int64) - 1
        for j in tl.static_range(K):
            newest = tl.maximum(d - K + j, 0)
            uniform = tl.load(uniform_ptr + i + j * num, mask=inside, other=0.0)
            number = tl.minimum((uniform * (newest + 1).to(tl.float64)).to(tl.int64), newest)
            again = tl.max((drawn == number[:, None]).to(tl.int32), axis=1) > 0
            number = tl.where(again, newest, number)
            drawn = tl.where(slot == j + 1, number[:, None], drawn)
        drawn = tl.where((d <= K)[:, None], slot - 1, drawn)
        offset = drawn + (drawn >= loop[:, None]).to(tl.int64)
        offset = tl.where(slot == 0, loop[:, None], offset)
        # a row with a diagonal has d + 1 entries, so the offset of its diagonal is at most d
        others = (slot > 0) & (slot <= d[:, None]) & (slot <= K)
        filled = ((slot == 0) & (loop <= d)[:, None]) | others
        entry = start[:, None] + offset
        column = tl.load(indices_ptr + entry, mask=filled & inside[:, None], other=0).to(tl.int64)
        at = i[:, None] * (K + 1) + slot
        write = inside[:, None] & (slot <= K)
        tl.store(slots_ptr + at, tl.where(filled, entry, -1), mask=write)
        tl.store(columns_ptr + at, tl.where(filled, column, row[:, None]), mask=write)


def draw_slots(about: Tensor, indices: Tensor, rows: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Draw entries of every row, and read the nodes in them.

    Args:
        about: for every row of the matrix its first entry, the number d of its entries off the diagonal, and the offset
            of the diagonal entry (:data:`NO_DIAGONAL` where there is none), [n, 3].
        indices: the columns of the matrix.
        rows: the rows to draw for.
        uniform: float64 numbers in [0, 1), [fanout, len(rows)].

    Returns:
        The entries by row and slot, [len(rows), fanout + 1], the diagonal first and -1 in an empty slot; and the
        columns of these entries, the row's own number in an empty slot.
    """
    if triton_available(rows) and rows.numel() > 0 and uniform.shape[0] <= MAX_FANOUT:
        (k, num), width = uniform.shape, triton.next_power_of_2(uniform.shape[0] + 1)
        found = rows.new_empty(num, k + 1)
        columns, rows_each = torch.empty_like(found), max(1, 1024 // width)
        rows, sizes = rows.contiguous(), {"K": k, "ROWS": rows_each, "WIDTH": width}
        _slots[(triton.cdiv(num, rows_each),)](about, indices, rows, uniform, found, columns, num, **sizes)
        return found, columns
    start, d, loop = about.index_select(0, rows).unbind(1)
    drawn = floyd(d, uniform)
    # the d other entries are numbered without the diagonal
    offsets = torch.cat([loop[:, None], drawn + (drawn >= loop[:, None])], 1)
    rounds = torch.arange(uniform.shape[0], device=rows.device)
    filled = torch.cat([(loop < NO_DIAGONAL)[:, None], rounds < d[:, None]], 1)
    slots = offsets.add_(start[:, None]).where(filled, -1)
    return slots, indices[slots.clamp(min=0)].long().where(filled, rows[:, None])


def floyd(d: Tensor, uniform: Tensor) -> Tensor:
    """k different numbers below d[i], uniformly, for every i at once, from uniform numbers [k, len(d)]; [len(d), k].

    Floyd's algorithm: round j draws one of the first d - k + j + 1 numbers, and replaces a number that was drawn before
    by the largest of them. Where d <= k the first d numbers of a row are 0..d-1, and the others mean nothing.
    """
    k = uniform.shape[0]
    rounds = torch.arange(k, device=d.device)[:, None]
    newest = (d - k + rounds).clamp_(min=0)
    drawn = torch.minimum((uniform * (newest + 1)).long(), newest)
    for j in range(1, k):
        again = (drawn[:j] == drawn[j]).any(0)
        drawn[j] = torch.where(again, newest[j], drawn[j])
    return torch.where(d <= k, rounds, drawn).t()
