"""The ranks of a distributed run: options, the process group, and collectives that name what they were waiting for."""

from __future__ import annotations

import atexit
import gc
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Literal, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from lmc.engine.distributed.launch import launched, meeting, rank_here
from lmc.errors import ConfigError, DistributedError, LmcError, check_at_least, check_fields


@dataclass(frozen=True)
class Distributed:
    """How the ranks of a distributed run exchange rows.

    Args:
        sync: "step": after every step, owners push the rows that changed to the ranks that mirror them. "layer": fresh
            rows are exchanged at every layer, and adjoints on the way back; a step then equals one process on the union
            of the ranks' batches.
        sync_every: steps between two pushes; only for ``sync="step"``.
        wire: "exact" sends rows as they are kept; "bfloat16" sends half the bytes of float32. Exact passes, such as
            evaluation, always send them as they are.
        timeout: seconds after which a rank that waits for another one ends with an error.
    """

    sync: Literal["step", "layer"] = "step"
    sync_every: int = 1
    wire: Literal["exact", "bfloat16"] = "exact"
    timeout: float = 120.0

    def __post_init__(self) -> None:
        check_fields(self)
        check_at_least(1, sync_every=self.sync_every)
        if self.sync == "layer" and self.sync_every > 1:
            raise ConfigError(f'expected sync="step" for sync_every={self.sync_every} (got "layer"): drop one of them')
        if not self.timeout > 0:
            raise ConfigError(f"expected a positive timeout (got {self.timeout})")


def local_device(device: torch.device) -> torch.device:
    """The GPU of this rank, where GPUs are used: ranks of one machine take one each."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())


class World:
    """The ranks, and the collectives between them.

    Args:
        device: where the tensors are that are exchanged; it decides the backend, NCCL for GPUs and gloo for CPUs.

    Attributes:
        where: what this rank is doing, for the message of a collective that fails.
        sent: bytes that this rank sent as rows to other ranks.
        messages: exchanges of rows so far.
        waits: seconds in every collective, as the calling thread sees them, where a measurement asks for them.
    """

    def __init__(self, options: Distributed, device: torch.device) -> None:
        self.options, self.device, self.where = options, device, "binding"
        self.sent = self.messages = 0
        self.waits: list[float] | None = None
        backend = "nccl" if device.type == "cuda" else "gloo"
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if not dist.is_initialized():
            if not launched():
                raise ConfigError(
                    "expected a process of torchrun for a distributed run (got one that was started alone): use "
                    "torchrun --nproc-per-node 2 SCRIPT, or distributed=False"
                )
            # An optimiser imports it at its first step. Imported after the process group is made, it keeps the group
            # alive, and a thread of the group that outlives the interpreter may abort the process.
            import_module("torch._dynamo")
            with self._waiting("the start of all ranks"):
                dist.init_process_group(backend, timeout=timedelta(seconds=options.timeout), **meeting(options.timeout))
            atexit.register(_leave)
        elif dist.get_backend() != backend:
            raise ConfigError(
                f"expected a process group of {backend} on {device.type} (got {dist.get_backend()}): initialise that "
                "one, or none"
            )
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    @contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        """Errors of a collective within become one line that names the rank and where it was."""
        started = time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            reason = " ".join(str(error).split())
            raise DistributedError(
                f"expected {what} within {self.options.timeout:g} s (got none at rank {rank_here()} in {self.where}): "
                f"another rank failed or is too slow; see its message, or raise timeout ({reason[:300]})"
            ) from error
        if self.waits is not None:
            self.waits.append(time.perf_counter() - started)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks, in place."""
        with self._waiting("the sum over all ranks"):
            dist.all_reduce(tensor)
        return tensor

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        return bool(self.max(torch.tensor([float(flag)], device=self.device)).item())

    def max(self, tensor: Tensor) -> Tensor:
        """The largest values over the ranks, in place."""
        with self._waiting("the maximum over all ranks"):
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite tensors with those of rank 0."""
        with self._waiting("the tensors of rank 0"):
            for tensor in tensors:
                dist.broadcast(tensor.data, 0)

    def gather(self, row: Tensor) -> list[Tensor]:
        """A tensor of every rank; the lengths of their first dimension may differ."""
        size = torch.tensor([row.shape[0]], device=self.device)
        sizes = [torch.zeros_like(size) for _ in range(self.ranks)]
        with self._waiting("the tensors of all ranks"):
            dist.all_gather(sizes, size)
            counts = [int(each) for each in sizes]
            padded = torch.zeros(max(counts), *row.shape[1:], dtype=row.dtype, device=self.device)
            padded[: row.shape[0]] = row
            found = [torch.zeros_like(padded) for _ in range(self.ranks)]
            dist.all_gather(found, padded)
        return [each[:count] for each, count in zip(found, counts, strict=True)]

    def texts(self, text: str) -> list[str]:
        """A text of every rank."""
        content = torch.tensor([0, *text.encode()], dtype=torch.uint8, device=self.device)
        return [bytes(each.tolist()[1:]).decode() for each in self.gather(content)]

    def check_same(self, settings: Mapping[str, object]) -> None:
        """Refuse, on all ranks, settings that differ between them."""
        texts = {name: re.sub(r" at 0x\w+", "", str(value)) for name, value in settings.items()}
        found = [json.loads(text) for text in self.texts(json.dumps(texts))]
        for rank, others in enumerate(found):
            for name, text in found[0].items():
                if others.get(name) != text:
                    raise ConfigError(
                        f"expected the same {name} on every rank (got {text:.80} on rank 0, and {others.get(name):.80} "
                        f"on rank {rank}): start all of them with the same command"
                    )

    @contextmanager
    def together(self) -> Iterator[None]:
        """An error of one rank within is raised on every rank, so that none waits for one that has failed."""
        error: LmcError | OSError | None = None
        try:
            yield
        except DistributedError:  # the others cannot be reached
            raise
        except (LmcError, OSError) as caught:
            error = caught
        texts = self.texts("" if error is None else str(error))
        if error is not None:
            raise error
        for rank, text in enumerate(texts):
            if text:
                raise DistributedError(f"rank {rank} failed: {text}")

    def exchange(
        self, rows: Tensor, send_counts: Sequence[int], receive_counts: Sequence[int], out: Tensor | None = None
    ) -> tuple[Tensor, dist.Work]:
        """Start to send rows [sum of send_counts, ...] to the ranks; returns where those of the others arrive, by
        default in new memory, and what to wait for (:meth:`wait`)."""
        out = rows.new_empty(sum(receive_counts), *rows.shape[1:]) if out is None else out
        with self._waiting("rows of all ranks"):
            work = dist.all_to_all_single(
                out, rows.contiguous(), list(receive_counts), list(send_counts), async_op=True
            )
        self.sent += rows.numel() * rows.element_size()
        self.messages += 1
        return out, work

    def wait(self, work: dist.Work) -> None:
        """Wait for an exchange."""
        with self._waiting("rows of all ranks"):
            work.wait()


def end(code: int) -> NoReturn:
    """End this process after an error at once. Otherwise torch destroys the process group, which first waits for the
    timeout of every collective that has begun."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _leave() -> None:
    """Release the process group at the end of the process; NCCL complains otherwise."""
    if getattr(sys, "last_value", None) is not None:  # an exception that nobody caught ends the process
        end(1)
    if dist.is_initialized():
        gc.collect()  # the last exchange of a run holds a thread of the group
        dist.destroy_process_group()
