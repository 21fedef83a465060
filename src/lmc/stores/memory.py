"""How much memory is free."""

from __future__ import annotations

import os
from pathlib import Path

import torch

_MEMINFO = Path("/proc/meminfo")
_LIMITS = (  # of a container, and what it uses
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)


def free_memory(device: torch.device) -> int:
    """Bytes that new tensors on ``device`` may take."""
    if device.type == "cuda":
        on_device, total = torch.cuda.mem_get_info(device)  # first, since it initialises CUDA
        stats = torch.cuda.memory.memory_stats_as_nested_dict(device)  # the flat ones take a millisecond
        reserved, allocated = (stats[f"{kind}_bytes"]["all"]["current"] for kind in ("reserved", "allocated"))
        share = torch.cuda.get_per_process_memory_fraction(device.index)  # 1 where no limit is set
        return int(min(on_device + reserved, share * total)) - allocated
    free = [_free_of_system()]
    for limit, used in _LIMITS:
        if limit.exists() and used.exists() and limit.read_text().strip().isdigit():
            free.append(max(0, int(limit.read_text()) - int(used.read_text())))
    return min(free)


def _free_of_system() -> int:
    if _MEMINFO.exists():
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
