"""The kinds of model: the one place where the engine asks what a model is like.

A kind (:class:`lmc.engine.layered.Layered` and its subclasses) says how a step estimates its gradient, how exact passes
go, and which conveniences of the engine (edges on the host, CUDA graphs, bfloat16 rows) the model allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmc.models import Model

if TYPE_CHECKING:
    from lmc.engine.layered import Layered


def kind_of(model: Model) -> Layered:
    from lmc.engine.layered import Layered
    from lmc.engine.own_forward import OwnForward
    from lmc.engine.recurrent import RecurrentKind

    if model.recurrent:
        return RecurrentKind()
    return OwnForward() if model.owns_forward else Layered()
