"""What ``lmc bench speed``, ``memory`` and ``scale`` share: the shape of the models, tiers, and how often is timed."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import typer

from lmc.bench.epoch import Setup
from lmc.cli.lists import parse_list
from lmc.cli.study import C, Hidden, Layers, R, Seed, Study, device_text
from lmc.errors import ConfigError

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
TIERS = ("device", "host", "disk")


@dataclass(frozen=True, kw_only=True)
class CostStudy(Study[C, R]):
    """A study of what training costs, for models of one shape."""

    shared: ClassVar[tuple[str, ...]] = ("hidden", "layers", "dropout", "norm", "seed")

    hidden: Hidden = 256
    layers: Layers = 3
    dropout: Annotated[float, typer.Option(help="Dropout rate between layers.")] = 0.5
    norm: Annotated[str, typer.Option(help="none, layer or batch.")] = "none"
    seed: Seed = 0

    def setup_with(self, repeat: int | None = None, warmup: int | None = None, precision: str = "float32") -> Setup:
        """The shape of the models and how often they are timed; by default more often on a GPU."""
        on_gpu = self.on.type == "cuda"
        return Setup(
            hidden=self.hidden,
            layers=self.layers,
            dropout=self.dropout,
            norm=None if self.norm == "none" else self.norm,
            seed=self.seed,
            warmup=warmup if warmup is not None else 3 if on_gpu else 1,
            repeat=repeat if repeat is not None else 20 if on_gpu else 3,
            precision=precision,
        )

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"device": device_text(self.on, self.tf32)}

    def model_text(self) -> str:
        """The GCN in words."""
        return f"GCN, {self.layers} layers of {self.hidden}, dropout {self.dropout:g}"


def epochs_text(setup: Setup) -> str:
    """How often is timed, in words."""
    return f"median of {setup.repeat} epochs after {setup.warmup}; training steps with Adam, no evaluation"


def parse_tiers(text: str | None, device: torch.device) -> list[str]:
    """The tiers; on a CPU the device is the host."""
    tiers = parse_list(text or ",".join(TIERS if device.type == "cuda" else ("device", "disk")), "--tiers", str)
    unknown = [tier for tier in tiers if tier not in TIERS]
    if unknown:
        raise ConfigError(f"expected tiers of {', '.join(TIERS)} (got {', '.join(unknown)})")
    return tiers
