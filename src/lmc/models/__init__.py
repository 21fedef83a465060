"""Models, one a file. They know rows, operators and parameters; they know no method."""

from lmc.models.base import Activation, Layer, Model
from lmc.models.gcn import GCN
from lmc.models.gcnii import GCNII
from lmc.models.rows import BatchNorm, LayerNorm, Linear, Operator, Pass
from lmc.models.sign import SIGN

__all__ = [
    "GCN",
    "GCNII",
    "SIGN",
    "Activation",
    "BatchNorm",
    "Layer",
    "LayerNorm",
    "Linear",
    "Model",
    "Operator",
    "Pass",
]
