"""What ranks do in the tests of shards; every function runs on all ranks at the same time."""

from __future__ import annotations

import os
from typing import Any

import torch
from jobs import Case
from typer.testing import CliRunner

import lmc
from lmc.cli.app import app
from lmc.data import read_shard
from lmc.engine import Distributed
from lmc.engine.distributed.launch import LAUNCHED


def from_folder(case: Case, folder: str, way: str) -> dict[str, Any]:
    """A training run, its scores and predictions: from the whole graph, from a folder, or from the shard read there."""
    ranks, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    graph, distributed = case.make_graph(), Distributed(**case.options)
    model, parts = case.make_model(graph), case.make_parts(graph) if way == "graph" else None
    shard = read_shard(folder, rank, ranks)
    given: Any = {"graph": graph, "folder": folder, "shard": shard}[way]
    record = lmc.fit(given, model, case.method, 2, parts=parts, device="cpu", distributed=distributed)
    whole = graph if way == "graph" else shard
    return {
        "epochs": [(epoch.loss, epoch.scores) for epoch in record.epochs],
        "parameters": dict(model.state_dict()),
        "evaluated": lmc.evaluate(model, whole, distributed=True),
        "alone": lmc.evaluate(model, graph),
        "predicted": lmc.predict(model, whole, distributed=True),
        "some": lmc.predict(model, whole, [3, 17, 3, 30], "states", layer=1, distributed=True),
        "exact": lmc.predict(model, graph),
    }


def bind_folder(case: Case, folder: str, parts: bool = False, shard: int | None = None) -> Any:
    """Bind the folder, or the shard of another rank; it is refused."""
    graph = case.make_graph()
    given: Any = folder if shard is None else read_shard(folder, shard)
    given_parts = case.make_parts(graph)[: given.num_local] if parts else None
    return case.method.bind(given, case.make_model(graph), given_parts, device="cpu", distributed=True)


def command(arguments: list[str]) -> tuple[int, str]:
    """The exit code and the output of ``lmc`` with these arguments, as if torchrun had started this rank."""
    given = torch.distributed.get_rank(), torch.distributed.get_world_size(), "localhost", 1
    os.environ |= dict(zip(LAUNCHED, map(str, given), strict=True))
    try:
        result = CliRunner().invoke(app, arguments)
    finally:
        for name in LAUNCHED:
            del os.environ[name]
    return result.exit_code, result.output
