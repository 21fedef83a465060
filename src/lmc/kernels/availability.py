"""The guarded import of Triton, and the one check whether its kernels can run."""

from __future__ import annotations

from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a build of torch without GPU support brings no Triton
    triton = None
    tl = None


def triton_available(*tensors: Tensor) -> bool:
    """Whether Triton is installed and every tensor is on a GPU."""
    return triton is not None and all(t.is_cuda for t in tensors)
