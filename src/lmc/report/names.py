"""The name and the colours of every method, for the figures and for the report page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Dashes = tuple[float, Sequence[float]]

LIGHT, DARK = "#ffffff", "#14171c"
"""The backgrounds of figures and of the page; every colour below has a contrast of at least 3 to its own."""

# Spec: name, colour on white, colour on a dark page. Methods that appear in one figure differ in lightness too.
METHODS = {
    "full": ("full batch", "#4d4d4d", "#c4c8ce"),
    "backward-sgd": ("backward SGD", "#8c6d5a", "#c7a995"),
    "cluster": ("Cluster-GCN", "#b97a00", "#e8ab37"),
    "gas": ("GAS", "#2e96cf", "#63bdf0"),
    "fm": ("GraphFM-OB", "#00875f", "#35c79b"),
    "lmc": ("LMC", "#d35400", "#ff8f50"),
    "cmc": ("CMC", "#1d4fa8", "#8ba8ff"),
    "imc": ("IMC", "#c2185b", "#ff78ac"),
    "top": ("TOP", "#7b4fb8", "#b99af2"),
    "graphsage": ("GraphSAGE", "#6b7a00", "#b5c435"),
    "vrgcn": ("VR-GCN", "#00838f", "#45c4d0"),
    "fm-ib": ("GraphFM-IB", "#4b9a3c", "#85cf77"),
    "fastgcn": ("FastGCN", "#a1456c", "#e08fb2"),
    "ladies": ("LADIES", "#5a6ea6", "#9fb1e0"),
    "graphsaint": ("GraphSAINT", "#a04b2a", "#e59a79"),
    "shadow": ("ShaDow", "#607080", "#a5b4c2"),
    "sign": ("SIGN", "#8a3fa0", "#d08fe4"),
    "sse": ("SSE", "#00875f", "#35c79b"),
    "lmc4rec": ("LMC4Rec", "#d35400", "#ff8f50"),
    "cmc4rec": ("CMC4Rec", "#1d4fa8", "#8ba8ff"),
    "pyg-full": ("PyG, full batch", "#8d2f4f", "#dd87a4"),
}
_OTHER = (("#6d6d00", "#c9c94a"), ("#7a7a7a", "#a8a8a8"), ("#2f7f73", "#6fcabc"), ("#5d4037", "#bca297"))
# Variants of one method share its hue; they differ in lightness, lines also in dashes.
_SHADES = (0.0, -0.35, -0.6, -0.15)
_DASHES: tuple[Dashes, ...] = ((0, ()), (0, (5, 2)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))


@dataclass(frozen=True)
class Look:
    """How one method is drawn everywhere: ``colour`` on white, ``dark`` on a dark page."""

    name: str
    colour: str
    dark: str
    dashes: Dashes


def looks_of(labels: Sequence[str]) -> dict[str, Look]:
    """How each method is drawn, by its spec, e.g. "lmc" or "lmc:alpha=0.8"."""
    looks: dict[str, Look] = {}
    bases: list[str] = []
    for label in labels:
        base, _, options = label.partition(":")
        unknown = dict.fromkeys(b for b in bases if b not in METHODS and b != base)
        name, light, dark = METHODS.get(base, (base, *_OTHER[len(unknown) % len(_OTHER)]))
        name += f" ({options.replace(':', ', ')})" if options else ""
        variant = bases.count(base) % len(_DASHES)
        amount = _SHADES[variant]
        looks[label] = Look(name, shade(light, amount), shade(dark, -amount), _DASHES[variant])
        bases.append(base)
    return looks


def shade(colour: str, amount: float) -> str:
    """The colour "#rrggbb", closer to white for positive amounts and closer to black for negative ones."""
    goal = 255 if amount > 0 else 0
    parts = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return "#" + "".join(f"{round(c + abs(amount) * (goal - c)):02x}" for c in parts)
