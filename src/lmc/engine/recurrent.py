"""Recurrent models: steps by :mod:`lmc.methods.recurrent`, and exact passes as repeated local solves.

With one chunk an exact pass is one solve of the whole graph. With several it is block Gauss-Seidel: each chunk is
solved with its neighbours held at the table's values, until a sweep finds every chunk solved already. Under the
Perron-Frobenius condition both converge to the same point.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmc.engine.exact import Aggregated, Chunks, MakeTable, chunks_of, row_numbers
from lmc.engine.layered import Estimate, Layered
from lmc.engine.problem import Problem, losses_of
from lmc.errors import ConfigError, SolverWarning
from lmc.graph import CSR, Batch, Extractor, spmm
from lmc.methods.protocol import Method, ProblemView, Tables, Widths
from lmc.methods.recurrent import DefaultRules, RecurrentRules, solved_rows
from lmc.models import Model, Pass, evaluating, recurrent_model
from lmc.sampling import derive
from lmc.solvers import Solution
from lmc.stores import Rows, Table

if TYPE_CHECKING:
    from lmc.engine.run import Run

MAX_SWEEPS = 300
TALLY = "solves"
_COUNTS = ("batches", "forward_steps", "backward_steps", "unconverged", "worst_residual")


def rules_of(method: Method) -> RecurrentRules:
    """What the method does on a recurrent model."""
    if isinstance(method, RecurrentRules):
        return method
    return DefaultRules(method.traits.history_update_probability)


class RecurrentKind(Layered):
    """One layer that is iterated to a fixed point."""

    trained_as = "recurrent"
    refusal = ("layers, such as GCN,", "LMC4Rec")
    bracketed = False  # rows that are solved for are read twice
    reads_batches_only = False

    def bfloat16_obstacle(self, model: Model) -> str | None:
        return "a fixed point is solved to a tolerance well below the rounding of its rows"

    def records(self, problem: Problem) -> bool:
        return False  # the host reads residuals

    def first_layer(self, problem: Problem) -> str:
        return "recurrent"

    def tables(self, method: Method, problem: ProblemView) -> Widths:
        return rules_of(method).tables(problem)

    def numbers(self) -> dict[str, Tensor]:
        # on the host, since a GPU would have to be waited for
        return {TALLY: torch.zeros(len(_COUNTS), dtype=torch.float64)}

    def rows_read(self, method: Method, batch: Batch) -> tuple[Rows, ...]:
        return (*super().rows_read(method, batch), solved_rows(batch))  # the solver starts from the tables

    def estimate(self, run: Run, batch: Batch, keep: bool, dropout: bool) -> Estimate:
        _refuse_autocast(run.problem)
        rules = rules_of(run.method)
        updates = _updates_histories(run, batch, rules.q)
        step = run.method_step(batch, keep and updates, dropout and (rules.q is None or not updates))
        found = rules.solve(step)
        if keep:
            _count(run.numbers, found.solves)
        if step.keep:
            rules.remember(step, found)
        return found.grads, found.loss

    def solver_start(self, tables: Tables) -> Table | None:
        return tables["H"][1] if "H" in tables else None

    def fill_chunks(self, problem: Problem, chunks: Chunks) -> Chunks:
        """By batches a fixed point would take many sweeps; as many rows as evaluation takes at once are quicker."""
        return list(chunks_of(problem))

    @torch.no_grad()
    def states(
        self, problem: Problem, chunks: Chunks, make: MakeTable, known: Mapping[int, Aggregated]
    ) -> Iterator[tuple[int, Table]]:
        """The fixed point, from what the table holds."""
        _refuse_autocast(problem)
        model, Z = recurrent_model(problem.model), make(1, problem.model.widths[0])

        def solve(block: Block) -> Solution:
            b = model.encode(problem.inputs(block.rows), Pass())
            assert isinstance(b, Tensor)
            if block.halo.numel():
                b = b + spmm(block.outside, Z.pull(block.halo).clamp_min(0)) @ model.W.t()
            return model.exact_equilibrium(block.inside, block.inside).states(b, Z.pull(block.rows))

        with evaluating(model):
            _sweep(problem, chunks, Z, solve, problem.blocks)
            yield 1, Z

    def adjoints(
        self, problem: Problem, chunks: Chunks, H: Sequence[Table], make: MakeTable
    ) -> Iterator[tuple[int, Table]]:
        """dL/dZ at the states H[0], from what the table holds."""
        model = recurrent_model(problem.model)
        (Z,), V = H, make(1, problem.model.widths[0])

        def solve(block: Block) -> Solution:
            z = Z.pull(block.rows).detach()
            h = z.clamp_min(0).requires_grad_()
            losses = losses_of(problem, model.decode(h, Pass()), block.rows)
            (G,) = torch.autograd.grad(losses.sum(), h)
            if block.halo.numel():
                G = G + spmm(block.outside, V.pull(block.halo)) @ model.W.detach()
            return model.exact_equilibrium(block.inside, block.inside).adjoints(z, G, V.pull(block.rows))

        with evaluating(model):
            _sweep(problem, chunks, V, solve, problem.transposed)
            yield 1, V


def _count(numbers: dict[str, Tensor], solves: tuple[Solution, Solution] | None) -> None:
    """Add the solves of one step."""
    if solves is None:
        return
    steps, failures = [s.steps for s in solves], sum(not s.converged for s in solves)
    tally = numbers[TALLY]
    tally[:4] += tally.new_tensor([1, *steps, failures])
    tally[4:].clamp_(min=max(s.residual for s in solves))


def take_solves(numbers: dict[str, Tensor]) -> dict[str, float] | None:
    """Mean steps of the solves, how many did not converge, and the worst residual, since the last call; None where
    nothing was solved."""
    if TALLY not in numbers:
        return None
    counts = dict(zip(_COUNTS, numbers[TALLY].tolist(), strict=True))
    batches = counts.pop("batches")
    if batches == 0:
        return None
    numbers[TALLY].zero_()
    return {name: value / batches if name.endswith("steps") else value for name, value in counts.items()}


def _refuse_autocast(problem: Problem) -> None:
    """A solver iterates to a tolerance that narrowed products do not reach."""
    if torch.is_autocast_enabled(problem.device.type):
        raise ConfigError(
            f"expected no torch.autocast around {type(problem.model).__name__} (got it enabled): its fixed point needs "
            "the precision of the parameters; leave the context"
        )


def _updates_histories(run: Run, batch: Batch, q: float | None) -> bool:
    """Whether this step runs without dropout and updates the histories: with probability q, decided by seed, epoch and
    slot alone."""
    model = run.problem.model
    if q is None or model.dropout == model.input_dropout == 0:
        return True
    return derive(run.seed, "history update", run.epoch, batch.slot) < q * 2**63


@dataclass(frozen=True, eq=False)
class Block:
    """Rows of a chunk, the rows they read beside themselves, and the two parts of P, or of P^T."""

    rows: Rows
    halo: Tensor
    inside: CSR
    outside: CSR


def blocks_of(problem: Problem, chunks: Chunks, blocks: Extractor) -> list[Block]:
    """P, or P^T, cut into chunks of rows; together they have its non-zeros."""
    n = problem.num_owned
    whole = torch.empty(0, dtype=torch.int64, device=problem.device)
    found = []
    for rows in chunks:
        if rows == slice(0, n) and problem.exchange is None:
            return [Block(rows, whole, blocks.P, blocks.P)]
        index = row_numbers(problem, rows)
        halo = blocks.halo(index)
        outside = blocks.block(index, halo)
        found.append(Block(rows, halo, blocks.induced(index), outside))
    return found


def _sweep(
    problem: Problem, chunks: Chunks, table: Table, solve: Callable[[Block], Solution], matrix: Extractor
) -> None:
    """Solve every chunk in turn until none changes any more."""
    blocks = blocks_of(problem, chunks, matrix)
    for _ in range(MAX_SWEEPS):
        settled = True
        for block in blocks:
            solution = solve(block)
            table.push(block.rows, solution.value)
            settled = settled and solution.steps == 1
        if problem.exchange is not None:  # other ranks are solved at the same time, with the same table
            problem.exchange.publish(table)
            settled = not problem.exchange.world.any(not settled)
        if settled or (len(blocks) == 1 and problem.exchange is None):
            return
    warnings.warn(
        f"expected the sweeps over {len(blocks)} chunks to settle (got changes after {MAX_SWEEPS}): lower kappa",
        SolverWarning,
        stacklevel=2,
    )
