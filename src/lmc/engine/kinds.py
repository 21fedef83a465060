"""The kinds of model: the one place where the engine asks what a model is like.

A kind says how a step estimates its gradient, how exact passes go, and which conveniences of the engine (kept edges on
the host, CUDA graphs, bfloat16 rows) the model allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from lmc.graph import Batch
from lmc.methods.protocol import Method, ProblemView, Widths
from lmc.models import Model
from lmc.stores import Rows, Table

if TYPE_CHECKING:
    from lmc.engine.exact import Chunks, MakeTable
    from lmc.engine.problem import Problem
    from lmc.engine.run import Run

Estimate = tuple[list[Tensor], Tensor]
"""The gradients of all parameters, and the loss, of a batch; both without the factor b/c."""


class Kind(Protocol):
    """How a kind of model is trained and evaluated."""

    trained_as: str
    """What a method's ``traits.trains`` has to contain."""
    refusal: tuple[str, str]
    """What a method that does not train this kind wants instead, and which method does train it."""
    bracketed: bool
    """Whether a step reads every row once, so that transfers can be bracketed by its beginning and end."""
    reads_batches_only: bool
    """Whether no more is read of the edges than those of a batch, so that they may stay on the host."""
    logits_read_all_layers: bool
    """Whether the logits read the states of all layers instead of the last one's."""

    def bfloat16_obstacle(self, model: Model) -> str | None:
        """Why rows cannot be bfloat16; None where they can."""

    def records(self, problem: Problem) -> bool:
        """Whether steps of fixed batches can be recorded as CUDA graphs."""

    def first_layer(self, problem: Problem) -> str:
        """What layer 1 reads, in one word."""

    def tables(self, method: Method, problem: ProblemView) -> Widths:
        """The tables that a method keeps on this kind of model."""

    def numbers(self) -> dict[str, Tensor]:
        """Small tensors that the kind itself keeps between steps, on the host."""

    def rows_read(self, method: Method, batch: Batch) -> tuple[Rows, ...]:
        """The rows at which a step pulls tables."""

    def estimate(self, run: Run, batch: Batch, keep: bool, dropout: bool) -> Estimate:
        """The method's estimate on a batch; with ``keep``, tables are updated."""

    def fill_chunks(self, problem: Problem, chunks: Chunks) -> Chunks:
        """The chunks in which tables are filled, where ``chunks`` are the cores of the batches."""

    def states(self, problem: Problem, chunks: Chunks, make: MakeTable) -> Iterator[tuple[int, Table]]:
        """(l, table of the exact states of layer l) for l = 1..L."""

    def adjoints(
        self, problem: Problem, chunks: Chunks, H: Sequence[Table], make: MakeTable
    ) -> Iterator[tuple[int, Table]]:
        """(l, table of V^l = dL/ds^l) for l = L..1."""

    def logits(self, problem: Problem, rows: Rows, states: Sequence[Tensor]) -> Tensor:
        """Logits of rows from their states of all layers, or of the last one."""

    def messages(self, problem: Problem, l: int, rows: Rows, states: Sequence[Table]) -> Tensor:
        """The rows that layer l aggregates."""


def kind_of(model: Model) -> Kind:
    """The kind of this model."""
    from lmc.engine.layered import Layered
    from lmc.engine.own_forward import OwnForward
    from lmc.engine.recurrent import RecurrentKind

    if model.recurrent:
        return RecurrentKind()
    return OwnForward() if model.owns_forward else Layered()
