"""Models, one a file. They know rows, operators and parameters; they know no method."""

from lmc.models.base import Activation, Layer, Model
from lmc.models.gcn import GCN
from lmc.models.gcnii import GCNII
from lmc.models.recgcn import RecGCN
from lmc.models.recurrent import Recurrent
from lmc.models.rows import BatchNorm, LayerNorm, Linear, Operator, Pass

__all__ = [
    "GCN",
    "GCNII",
    "Activation",
    "BatchNorm",
    "Layer",
    "LayerNorm",
    "Linear",
    "Model",
    "Operator",
    "Pass",
    "RecGCN",
    "Recurrent",
]
