"""What the engine calls around the passes of a model. By default nothing happens."""

from __future__ import annotations

from torch import nn

from lmc.graph import CSR, Graph


class Hooks(nn.Module):
    """Calls before, during and after training that a model may answer."""

    def initialise(self, in_width: int) -> None:
        """Called with the feature width of a graph before the model is first used on it."""

    def check_on(self, graph: Graph) -> None:
        """Called once with the graph before training on it; refuses what was not known without the graph."""

    def prepare(self, P: CSR) -> None:
        """Called once with the whole graph's aggregation matrix, before training on it."""

    def project(self) -> None:
        """Project the parameters onto the set where the model is well-posed; called after every optimiser step."""

    def well_posed(self, block: CSR) -> CSR:
        """The matrix to aggregate with instead of ``block``, a sample of P; recurrent models scale it so that their
        fixed point exists."""
        return block
