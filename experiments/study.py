"""What the studies share: the class :class:`Study`, which runs them, and studies that train GCNs on one graph."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import typer

from experiments.testbed import Testbed
from lmc.cli.study import C, Configs, GraphStudy, Hidden, Layers, Methods, R, Study

__all__ = ["C", "Configs", "GraphStudy", "Hidden", "Layers", "Methods", "R", "Rates", "Seeds", "Study", "TrainingStudy"]

Rates = Annotated[str, typer.Option(help="Learning rates of Adam, comma-separated.")]
Seeds = Annotated[int, typer.Option(help="Number of seeds: 0, 1, ...")]


@dataclass(frozen=True, kw_only=True)
class TrainingStudy(GraphStudy[C, R]):
    """A study that trains GCNs of one shape on one graph."""

    shared: ClassVar[tuple[str, ...]] = ("layers", "hidden")

    layers: Layers = 3
    hidden: Hidden = 256

    @cached_property
    def testbed(self) -> Testbed:
        """Where the methods are bound and trained."""
        return Testbed(self.graph, self.on, hidden=self.hidden, layers=self.layers)

    def facts(self) -> list[tuple[str, str]]:
        return [*super().facts(), ("model", f"GCN, {self.layers} layers of {self.hidden}")]
