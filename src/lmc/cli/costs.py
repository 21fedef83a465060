"""What ``lmc bench speed``, ``memory`` and ``scale`` share: the shape of the models, tiers, and how often is timed."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar

import typer

from lmc.bench.epoch import Setup
from lmc.cli.lists import parse_words
from lmc.cli.study import C, Dropout, Hidden, Layers, R, Seed, Study

AutoDataset = Annotated[
    str, typer.Argument(help="Name or path; auto: arxiv-like on a GPU, arxiv-like@0.1 on a CPU.", show_default="auto")
]
SomeConfigs = Annotated[
    str | None,
    typer.Option(help="parts/clusters, comma-separated.", show_default="80/40,80/10,80/1; speed on a CPU 80/40,80/10"),
]
Tiers = Annotated[
    str | None, typer.Option(help="Tiers of the histories.", show_default="device,host,disk; on a CPU device,disk")
]
Repeat = Annotated[int | None, typer.Option(help="Epochs to take the median of.", show_default="3; on a GPU 20")]
Warmup = Annotated[int | None, typer.Option(help="Epochs before them.", show_default="1; on a GPU 3")]

RIVALS = "gas,lmc:alpha=1:score=1,cmc"


@dataclass(frozen=True, kw_only=True)
class CostStudy(Study[C, R]):
    """A study of what training costs, for models of one shape."""

    shared: ClassVar[tuple[str, ...]] = ("hidden", "layers", "dropout", "norm", "seed")

    hidden: Hidden = 256
    layers: Layers = 3
    dropout: Dropout = 0.5
    norm: Annotated[str, typer.Option(help="none, layer or batch.")] = "none"
    seed: Seed = 0

    @cached_property
    def setup(self) -> Setup:
        """The shape of the models, and how often they are timed."""
        return self.setup_with()

    def setup_with(self, repeat: int | None = None, warmup: int | None = None, precision: str = "float32") -> Setup:
        """The shape of the models and how often they are timed; by default more often on a GPU."""
        often = {"warmup": 3, "repeat": 20} if self.on.type == "cuda" else {"warmup": 1, "repeat": 3}
        often |= {name: n for name, n in (("warmup", warmup), ("repeat", repeat)) if n is not None}
        norm = None if self.norm == "none" else self.norm
        return Setup(self.hidden, self.layers, self.dropout, norm, seed=self.seed, precision=precision, **often)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"device": self.device_text}

    def facts(self) -> list[tuple[str, str]]:
        return [*super().facts(), ("model", f"GCN, {self.layers} layers of {self.hidden}, dropout {self.dropout:g}")]

    def parse_tiers(self, text: str | None) -> list[str]:
        """The tiers; on a CPU the device is the host."""
        default = "device,host,disk" if self.on.type == "cuda" else "device,disk"
        return parse_words(text or default, "--tiers", ("device", "host", "disk"))


@dataclass(frozen=True, kw_only=True)
class TimedStudy(CostStudy[C, R]):
    """A study whose cells are epochs that are timed several times."""

    repeat: Repeat = None
    warmup: Warmup = None

    @cached_property
    def setup(self) -> Setup:
        """The shape of the models, and how often they are timed."""
        return self.setup_with(self.repeat, self.warmup)


def epochs_text(setup: Setup) -> str:
    """How often is timed, in words."""
    return f"median of {setup.repeat} epochs after {setup.warmup}; training steps with Adam, no evaluation"
