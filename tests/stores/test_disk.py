"""Tables in files: where the file is, what stays mapped, and what the GPU reads itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from lmc.errors import ConfigError
from lmc.files import mapped_file
from lmc.kernels.pinned import pin
from lmc.stores import Disk, FileRows, StagedTable
from lmc.stores.disk import RESIDENT

CPU = torch.device("cpu")


def test_a_file_is_in_the_given_folder_and_leaves_nothing(tmp_path: Path) -> None:
    made = Disk(tmp_path / "new").table(5, 4, torch.float32, CPU)
    made.push(slice(0, 5), torch.ones(5, 4))
    assert (tmp_path / "new").is_dir()
    assert list((tmp_path / "new").iterdir()) == []
    assert float(made.data().sum()) == 20


def test_a_folder_without_room_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ConfigError, match=r"expected a folder with .* GB of room .* Disk\(path=\.\.\.\)"):
        Disk(tmp_path / "file").table(5, 4, torch.float32, CPU)


def test_pages_of_a_file_are_unmapped_and_nothing_is_lost() -> None:
    n, width = 3 * RESIDENT // 1024, 256  # a table three times what may stay mapped
    made = StagedTable(FileRows(n, [width], torch.float32, CPU, resident=RESIDENT))
    for first in range(0, n, n // 24):
        rows = slice(first, min(n, first + n // 24))
        made.push(rows, torch.full((rows.stop - rows.start, width), float(first)))
    assert _resident(made) < 1.5 * RESIDENT
    assert torch.equal(
        made.pull(slice(0, n)), (torch.arange(n) // (n // 24) * (n // 24)).float()[:, None].expand(n, width)
    )


def _resident(made: StagedTable) -> int:
    """Bytes of the table's mapping in memory, as Linux reports them."""
    address = f"{made.data().data_ptr():x}"
    here, found = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0] and ":" not in line.split()[0]:
            here = line.startswith(address + "-")
        elif here and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


def test_large_files_share_what_may_stay_mapped() -> None:
    n, width = RESIDENT // 1024, 256
    tables = [StagedTable(FileRows(n + 1, [width], torch.float32, CPU, resident=RESIDENT)) for _ in range(4)]
    for first in range(0, n, n // 8):
        for k, made in enumerate(tables):
            made.push(slice(first, first + n // 8), torch.full((n // 8, width), float(k)))
    assert sum(_resident(made) for made in tables) < 1.5 * RESIDENT
    for k, made in enumerate(tables):
        assert made.pull(slice(0, n)).eq(k).all()


@pytest.mark.gpu
def test_a_file_that_fits_is_read_by_the_gpu_itself_where_the_system_allows_it() -> None:
    cuda = torch.device("cuda")
    small, large = (FileRows(12, [3], torch.float64, cuda, resident=resident) for resident in (None, 1))
    if not pin(torch.frombuffer(mapped_file(4096), dtype=torch.int8), cuda, small, read_only=True):
        pytest.skip("this system does not lock the pages of a file")
    assert small.kernels_read
    assert not small.kernels_write
    assert not large.kernels_read


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("action", ["push", "add", "pull", "data"])
def test_a_forked_process_is_refused_and_changes_nothing(action: str) -> None:
    made = Disk().table(5, 4, torch.float32, CPU)
    rows, values = torch.arange(5), torch.ones(5, 4)
    child = os.fork()
    if child == 0:  # every way out of the child must end its process
        code = 1
        try:
            {
                "push": lambda: made.push(rows, values),
                "add": lambda: made.add(rows, values),
                "pull": lambda: made.pull(rows),
                "data": lambda: made.data().add_(1),
            }[action]()
        except ConfigError as error:
            code = 0 if "forked" in str(error) and "\n" not in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not made.data().any()
    made.push(rows, values)
    assert made.pull(rows).eq(1).all()
