"""The page that shows the same training in plain PyG and in lmc: both examples run, and their differing lines count."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import models

import lmc

PAGE = Path(__file__).resolve().parents[2] / "docs" / "bring-your-own-model.md"
SECTION = PAGE.read_text().split("## The same training in plain PyG and in lmc")[1].split("\n## ")[0]
SETUP, PLAIN, WITH_LMC = re.findall(r"```python\n(.*?)```", SECTION, flags=re.DOTALL)
METHOD = "LMC4Conv(num_parts=10, clusters_per_batch=2)"


def trained(code: str, names: dict[str, Any]) -> dict[str, Tensor]:
    """The parameters that a piece of the page ends with."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec(compile(code, "example", "exec"), names)
    return {k: v.detach().cpu() for k, v in names["network"].state_dict().items()}


def test_the_number_of_differing_lines_is_that_of_the_page() -> None:
    plain, with_lmc = ([line.strip() for line in code.strip().splitlines()] for code in (PLAIN, WITH_LMC))
    changes = [line[0] for line in difflib.ndiff(plain, with_lmc) if line[0] in "+-"]
    stated = re.search(r"(\d+) lines differ, .*: (\d+) are left out and (\d+) are added", SECTION)
    assert stated is not None
    assert [len(changes), changes.count("-"), changes.count("+")] == [int(number) for number in stated.groups()]


def test_both_examples_train_and_full_batch_gives_the_parameters_of_plain_pyg() -> None:
    g = lmc.load("tiny-like")
    edge_index = torch.stack([g.adj.indices.long(), g.adj.row_index()])
    names = {"g": g, "edge_index": edge_index, "lmc": lmc, "torch": torch, "nn": nn, "pyg": models}
    exec(compile(SETUP, "example", "exec"), names)
    data = names["data"]
    assert isinstance(data, Data)
    plain = trained(PLAIN, dict(names))
    assert METHOD in WITH_LMC
    whole = trained(WITH_LMC.replace(METHOD, "FullBatch()"), dict(names))
    for key, value in plain.items():
        torch.testing.assert_close(whole[key], value, rtol=1e-3, atol=1e-4)
    by_batches = dict(names)
    trained(WITH_LMC, by_batches)
    network = by_batches["network"]
    assert isinstance(network, nn.Module)
    right = network.cpu().eval()(data.x, data.edge_index).argmax(1) == data.y
    assert float(right[data.train_mask].float().mean()) > 0.9
