"""The type of rows: that of the parameters, or bfloat16 with float32 wherever something is added up.

bfloat16 has the range of float32 and 8 bits of it: a rounding moves a number by 2^-8 of itself at most.
"""

from __future__ import annotations

import torch

from lmc.engine.kinds import Kind
from lmc.errors import ConfigError
from lmc.models import Model


def row_type(precision: str, model: Model, kind: Kind, device: torch.device) -> torch.dtype:
    """The type of rows, tables and P for a model on a device; refuses what would not be trained well."""
    parameters = next(model.parameters()).dtype
    if precision == "float32":
        return parameters
    if parameters != torch.float32:
        raise ConfigError(
            f'expected float32 parameters for precision="bfloat16" (got {parameters}): convert with model.float()'
        )
    why = kind.bfloat16_obstacle(model)
    if why:
        raise ConfigError(f'expected precision="float32" for {type(model).__name__} (got "bfloat16"): {why}')
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        raise ConfigError(
            f'expected a GPU of compute capability 8.0 for precision="bfloat16" (got '
            f'{torch.cuda.get_device_name(device)}): it has no bfloat16 products; use precision="float32"'
        )
    return torch.bfloat16
