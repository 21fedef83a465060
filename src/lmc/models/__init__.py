"""Models, one per file. They know rows, operators and parameters; they know no method."""

from lmc.models.activation import Activation, BatchNorm, LayerNorm
from lmc.models.appnp import APPNP
from lmc.models.base import Layer, Model
from lmc.models.equilibrium import Recurrent, recurrent_model
from lmc.models.gat import GAT
from lmc.models.gcn import GCN
from lmc.models.gcnii import GCNII
from lmc.models.gin import GIN
from lmc.models.ignn import IGNN
from lmc.models.passes import Operator, Pass, evaluating, modes_kept
from lmc.models.pna import PNA
from lmc.models.recgcn import RecGCN
from lmc.models.rows import Bias, Embedding, Linear
from lmc.models.sage import SAGE
from lmc.models.sign import SIGN

MODELS: dict[str, type[Model]] = {
    cls.__name__.lower(): cls for cls in (GCN, GCNII, SAGE, GIN, GAT, APPNP, PNA, SIGN, RecGCN, IGNN)
}
"""Every model by its name on the command line."""
