"""The settings of the paper's experiments, by names such as ``lmc/gcn/ogbn-arxiv``: method, model, data set.

One TOML file holds the settings of LMC on one model and data set. The presets of the methods that it is compared with
are derived from it: they have the same model, parts and learning rate, and the method's own defaults otherwise.
"""

from lmc.presets.presets import Preset, get, names
