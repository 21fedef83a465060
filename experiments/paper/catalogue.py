"""Every table and figure of the paper in its order, a check of our own, and what is no experiment."""

from experiments.paper.ablations import Table12, Table13
from experiments.paper.figure_4 import Figure4
from experiments.paper.figure_5 import Figure5
from experiments.paper.figure_6 import Figure6
from experiments.paper.figure_9 import Figure9
from experiments.paper.figure_10 import Figure10
from experiments.paper.item import Item
from experiments.paper.recurrent_curves import Figure7, Figure8, Figure11
from experiments.paper.settings import Table7, Table8
from experiments.paper.small_graphs import SmallGraphs
from experiments.paper.table_1 import Table1
from experiments.paper.table_2 import Table2
from experiments.paper.table_3 import Table3
from experiments.paper.table_4 import Table4
from experiments.paper.table_5 import Table5
from experiments.paper.table_6 import Figure12, Table6
from experiments.paper.table_11 import Subgraphs, Table11
from experiments.paper.table_14 import Figure13, Table14

ITEMS: tuple[type[Item], ...] = (
    Figure4, Table1, Table2, Figure5, Table3, Table4, Figure6, Figure7, Figure8, Figure9, Table5, Table6, Table7,
    Table8, Figure10, Table11, Subgraphs, Table12, Table13, Figure11, Figure12, Table14, Figure13,
    SmallGraphs,
)  # fmt: skip
NO_EXPERIMENT = {
    "figures 1 to 3 (fig:model, fig:computation, fig:message_flow)": "drawings of models and messages",
    "tables 9 and 10 (tab:complexity_conv, tab:complexity_rec)": "orders of growth without measured numbers; "
    "table-3, table-5 and table-11 and `lmc bench scale` measure time and memory",
}
"""What the paper shows beside its experiments, and why there is no command for it."""
