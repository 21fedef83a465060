"""The check that a run still trains the parameters of its model."""

from __future__ import annotations

from torch import nn

from lmc.errors import ConfigError


class BoundParameters:
    """The modules and parameters of a model at the time of ``bind``.

    A run estimates the gradients of the parameters that it found when it was bound. A parameter that the model gets
    later (a replaced layer, ``weight_norm``, ``load_state_dict(assign=True)``), or that stops being frozen later, would
    never be trained. The check compares identities on the host and does not wait for the device.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.named_modules())
        self._held = list(model.parameters())  # so that no id is used again
        self._before = [_contents(module) for _, module in self._modules]

    def check(self) -> None:
        """Refuse to go on if a submodule or a parameter was replaced, added, removed, frozen or unfrozen."""
        for (name, module), before in zip(self._modules, self._before, strict=True):
            if _contents(module) != before:
                raise ConfigError(
                    f"expected the parameters that the run was bound to (got others, or others that are trained, in "
                    f"{name or type(module).__name__}): bind the method again after changing the model"
                )


def _contents(module: nn.Module) -> list[object]:
    """The submodules and parameters of a module itself, by identity, and whether each parameter is trained."""
    found: list[object] = [id(child) for child in module._modules.values()]
    return found + [None if p is None else (id(p), p.requires_grad) for p in module._parameters.values()]
