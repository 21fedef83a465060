"""Models, one a file. They know rows, operators and parameters; they know no method."""

from lmc.models.base import Layer, Model
from lmc.models.gcn import GCN
from lmc.models.gcnii import GCNII
from lmc.models.rows import Operator, Pass

__all__ = ["GCN", "GCNII", "Layer", "Model", "Operator", "Pass"]
