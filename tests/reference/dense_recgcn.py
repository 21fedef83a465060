"""RecGCN in dense numpy: Z = P relu(Z) W^T + b(X), b(X) = X B^T + c, logits = relu(Z) C^T + e."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from dense import Array, Data, Nodes, Values

W, B, c, C, e = "layers.0.lin.weight", "lin_in.weight", "lin_in.bias", "lin_out.weight", "lin_out.bias"
"""The paper's letters for the model's parameters."""


def relu(Z: Array) -> Array:
    return np.maximum(Z, 0)


def settled(f: Callable[[Array], Array], shape: tuple[int, ...]) -> Array:
    """The fixed point of a contraction, from zero, until nothing changes but the last digits."""
    x = np.zeros(shape)
    for _ in range(2000):
        before, x = x, f(x)
        if np.abs(x - before).max() <= 1e-15 * np.abs(x).max():
            return x
    raise AssertionError("expected a contraction")


def b(theta: Values, data: Data, nodes: Nodes) -> Array:
    """b(X) of some nodes."""
    return data.x[nodes] @ theta[B].T + theta[c]


def states(theta: Values, P: Array, constant: Array) -> Array:
    """Z = P relu(Z) W^T + constant."""
    return settled(lambda Z: P @ relu(Z) @ theta[W].T + constant, constant.shape)


def adjoints(theta: Values, P: Array, Z: Array, G: Array) -> Array:
    """U = 1[Z > 0] * (P^T U W + G)."""
    return settled(lambda U: (Z > 0) * (P.T @ U @ theta[W] + G), Z.shape)


def losses(theta: Values, data: Data, Z: Array, nodes: Nodes) -> tuple[Array, Array, Values]:
    """The losses of some nodes, G = dL/dH, and the gradients of the output layer by node: their sum over the nodes that
    count is left to the caller."""
    H = relu(Z)
    found, v = data.losses(H @ theta[C].T + theta[e], nodes)
    return found, v @ theta[C], {C: v[:, :, None] * H[:, None, :], e: v}


def gradients(theta: Values, data: Data, core: Nodes, U: Array, m: Array, output: Values, weight: float) -> Values:
    """(24) (25) from core rows: U = dL/dZ, m the messages that W multiplies, ``output`` as :func:`losses` gives."""
    n = len(core)
    grads = {W: U[:n].T @ m[:n], B: U[:n].T @ data.x[core], c: U[:n].sum(0)}
    grads |= {name: each[:n].sum(0) for name, each in output.items()}
    return {name: weight * g for name, g in grads.items()}


def exact(theta: Values, data: Data) -> tuple[Array, Array]:
    """Z and dL/dZ of all nodes."""
    everybody = np.arange(data.num_nodes)
    Z = states(theta, data.P, b(theta, data, everybody))
    _, G, _ = losses(theta, data, Z, everybody)
    return Z, adjoints(theta, data.P, Z, G)
