"""A plug-in that trains networks of PyG convolutions, unchanged: ``lmc.wrap``.

- :mod:`lmc.pyg.wrap`: ``wrap`` and the model it returns.
- :mod:`lmc.pyg.inspection`: what is looked at once, on small graphs, and what is refused.
- :mod:`lmc.pyg.recording`: the plain passes that the inspection looks at.
- :mod:`lmc.pyg.row_checks`: whether the network is row-wise between its convolutions and has the right gradients.
- :mod:`lmc.pyg.propagate_hook`: what happens at each ``propagate`` of a convolution during a pass.
- :mod:`lmc.pyg.core_rows_mode`: how parameters take their gradient from core rows only in code that does not know it.
- :mod:`lmc.pyg.matrices`: the matrices that convolutions aggregate with.
"""

from lmc.pyg.wrap import wrap
