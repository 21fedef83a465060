"""Triton kernels. Each file holds a kernel, its plain torch version and one function that chooses between them.

The subpackage imports nothing of the library but ``lmc.errors``: kernels work on tensors.
"""
