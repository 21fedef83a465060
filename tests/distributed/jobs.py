"""What ranks do in the tests; every function runs on all ranks at the same time."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATv2Conv, GCNConv, MessagePassing, SAGEConv
from torch_geometric.nn import models as pyg

import lmc
from helpers import MODELS, MORE_MODELS, SPECIAL_GRAPHS, chance, random_graph, weighted_graph
from lmc.engine import Distributed, Run
from lmc.engine.distributed import exchange
from lmc.errors import Interrupted
from lmc.graph import Graph
from lmc.graph.csr import identity
from lmc.methods import Method
from lmc.models import GCN, IGNN, Model, RecGCN
from lmc.solvers import Anderson
from lmc.train import Training
from lmc.train.evaluate import evaluate_problem
from lmc.train.run_folder import Settings


def with_edge_features(directed: bool = False) -> Graph:
    """A graph with weights and three features of every edge."""
    graph = weighted_graph(directed=directed)
    features = torch.randn(graph.adj.nnz, 3, generator=chance(7), dtype=torch.float64)
    return replace(graph, adj=replace(graph.adj, edge_data=features))


def chain(n: int) -> Graph:
    """Nodes in a row, each connected with the next one: most ranks have no row near the batches of a step."""
    random, node = random_graph(n), torch.arange(n - 1)
    edges = torch.stack([torch.cat([node, node + 1]), torch.cat([node + 1, node])])
    return Graph.from_edges(edges, random.x, random.y, train=random.train, val=random.val, test=random.test)


class Mixed(nn.Module):
    """Convolutions with three matrices: weighted, attention with edge features, and a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = GCNConv(6, 7), GATv2Conv(7, 5, edge_dim=3), SAGEConv(5, 4)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor, edge_attr: Tensor) -> Tensor:
        h = self.first(x, edge_index, edge_weight).relu()
        h = self.second(h, edge_index, edge_attr).relu()
        return self.third(h, edge_index)


class ByNumberOfEdges(MessagePassing):
    """A convolution whose weights depend on the whole graph."""

    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.lin = nn.Linear(6, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        weight = x.new_full(edge_index.shape[1:], 1 / max(1, edge_index.shape[1]))
        return self.propagate(edge_index, x=self.lin(x), weight=weight)

    def message(self, x_j: Tensor, weight: Tensor) -> Tensor:
        return weight.view(-1, 1) * x_j


GRAPHS = {
    "random": random_graph,
    **SPECIAL_GRAPHS,
    "chain": lambda: chain(40),
    "large": lambda: random_graph(60, seed=3),
    "no-features": lambda: replace(random_graph(), x=identity(40)),
    "inductive": lambda: replace(random_graph(), inductive=True),
    "edge-features": with_edge_features,
    "edge-features-directed": lambda: with_edge_features(directed=True),
}
EVERY_MODEL = {
    **MODELS,
    **MORE_MODELS,
    "recgcn": lambda g: RecGCN(g.num_features, 7, g.num_classes, tol=1e-13, kappa=0.8),
    "recgcn-embedding": lambda g: RecGCN(g.num_features, 7, g.num_classes, tol=1e-13, kappa=0.8, input="embedding"),
    "ignn": lambda g: IGNN(g.num_features, 7, g.num_classes, tol=1e-13, kappa=0.8),
    "ignn-anderson": lambda g: IGNN(g.num_features, 7, g.num_classes, solver=Anderson(tol=1e-13, memory=3), kappa=0.8),
    "gcn-dropout": lambda g: GCN(g.num_features, 7, g.num_classes, num_layers=3, dropout=0.4),
    "gcn-batch-norm": lambda g: GCN(g.num_features, 7, g.num_classes, num_layers=3, norm="batch"),
    "wrap-gcn": lambda g: lmc.wrap(pyg.GCN(g.num_features, 7, 3, g.num_classes, norm="batch", jk="cat")),
    "wrap-sage": lambda g: lmc.wrap(pyg.GraphSAGE(g.num_features, 7, 3, g.num_classes)),
    "wrap-gin": lambda g: lmc.wrap(pyg.GIN(g.num_features, 7, 2, g.num_classes)),
    "wrap-gat": lambda g: lmc.wrap(pyg.GAT(g.num_features, 6, 2, g.num_classes, heads=2)),
    "wrap-mixed": lambda g: lmc.wrap(Mixed()),
    "wrap-number-of-edges": lambda g: lmc.wrap(ByNumberOfEdges()),
}


@dataclass(frozen=True)
class Case:
    """A method on a model and a graph, with the same parts on one process and on many; the nodes of a part follow each
    other, unless they are ``scattered``."""

    method: Method
    model: str = "gcn"
    graph: str = "random"
    parts: int = 8
    steps: int = 5
    options: dict[str, Any] = field(default_factory=dict)
    sparse: bool = False
    scattered: bool = False

    def make_graph(self) -> Graph:
        if self.sparse:
            return random_graph(sparse_features=True)
        return GRAPHS[self.graph]()

    def make_parts(self, graph: Graph) -> Tensor:
        nodes = torch.arange(graph.num_nodes)
        return nodes % self.parts if self.scattered else nodes * self.parts // graph.num_nodes

    def make_model(self, graph: Graph) -> Model:
        torch.manual_seed(1)
        return EVERY_MODEL[self.model](graph).double()

    def bind(self, **options: Any) -> Run:
        graph = self.make_graph()
        return self.method.bind(graph, self.make_model(graph), self.make_parts(graph), device="cpu", **options)

    def bind_here(self) -> Run:
        """The run of this rank."""
        return self.bind(distributed=Distributed(**self.options))


def optimizer_of(run: Run) -> torch.optim.Optimizer:
    return torch.optim.SGD(run.problem.model.parameters(), lr=0.5)


def batches_of(run: Run, steps: int) -> Any:
    """The first batches of a run, over several epochs."""
    done = 0
    while done < steps:
        for batch in run.batches():
            yield batch
            done += 1
            if done == steps:
                return


def state_of(run: Run) -> dict[str, Tensor]:
    """The tables and numbers of a run, by name."""
    return {name: table.data() for name, table in run.named_tables().items()} | run.numbers


def train(case: Case) -> dict[str, Any]:
    """Train some steps; what this rank saw, and where it ended."""
    run = case.bind_here()
    run.refresh()
    optimizer, losses, cores = optimizer_of(run), [], []
    for batch in batches_of(run, case.steps):
        losses.append(float(run.step(batch, optimizer).loss))
        cores.append(batch.n_id[: batch.num_core])
    run.sync.settle()
    shard = run.problem.exchange.shard
    return {
        "steps": run.num_batches,
        "losses": losses,
        "cores": cores,
        "state": dict(run.problem.model.state_dict()),
        "parameters": {name: p.detach().clone() for name, p in run.parameters.items()},
        "tables": {name: table.data() for name, table in run.named_tables().items()},
        "ids": shard.ids,
        "owned": shard.num_owned,
        "sent": run.problem.exchange.world.sent,
        "masks": run.generator.initial_seed(),
        "order": [run.clusters.epoch(epoch) for epoch in range(3)],
    }


def exact(case: Case) -> dict[str, Any]:
    """What exact passes give: scores, predictions, and filled tables."""
    run = case.bind_here()
    run.refresh()
    graph, model, shard = case.make_graph(), run.problem.model, run.problem.exchange.shard
    nodes = [3, 17, 3, 30]
    return {
        "messages": run.problem.exchange.world.messages,
        "scores": evaluate_problem(run.problem),
        "evaluated": lmc.evaluate(model, graph, distributed=True),
        "predicted": lmc.predict(model, graph, distributed=True),
        "some": lmc.predict(model, graph, nodes, "classes", distributed=True),
        "states": lmc.predict(model, graph, nodes, "states", layer=1, distributed=True),
        "tables": {name: table.data() for name, table in run.named_tables().items()},
        "ids": shard.ids,
        "owned": shard.num_owned,
    }


def in_pieces(case: Case) -> list[dict[str, Any]]:
    """The same with messages of a few rows, and with messages of all rows."""
    found = []
    for exchange.MESSAGE in (256, 2**23):
        found.append(exact(case))
    return found


def fit(case: Case, options: dict[str, Any], folder: str | None) -> tuple[Any, dict[str, Tensor], dict[str, float]]:
    """The record and the parameters of a whole training run, and the scores of one rank alone."""
    graph = case.make_graph()
    model = case.make_model(graph)
    distributed = Distributed(**case.options)
    record = lmc.fit(
        graph, model, case.method, parts=case.make_parts(graph), device="cpu", run_dir=folder, distributed=distributed,
        **options,
    )  # fmt: skip
    scores = lmc.evaluate(model, graph) if torch.distributed.get_rank() == 0 else {}
    return [(e.loss, e.scores) for e in record.epochs], dict(model.state_dict()), scores


def traffic(case: Case) -> dict[str, Any]:
    """The bytes of every step as this rank sent them, and as they follow from the lists and the batches."""
    run = case.bind_here()
    run.refresh()
    exchange, optimizer, counted = run.problem.exchange, optimizer_of(run), 0
    before, messages, owned = exchange.world.sent, exchange.world.messages, exchange.shard.num_owned
    widths = {name: sum(t.data().shape[1] for t in layers.values()) for name, layers in run.tables.items()}
    fetched = widths.pop("M", 0) + widths.pop("U", 0)
    for batch in batches_of(run, case.steps):
        run.step(batch, optimizer)
        mirrored = sum(int(torch.isin(batch.core, rows).sum()) for rows in exchange.sent_to)
        counted += 8 * (mirrored * sum(widths.values()) + int((batch.halo >= owned).sum()) * fetched)
    run.sync.settle()
    return {"counted": counted, "sent": exchange.world.sent - before, "messages": exchange.world.messages - messages}


def swept(case: Case) -> tuple[int, int]:
    """The bytes that this rank sends in a sweep, and those of the rows of Q, with a halo also of M, of mirrors."""
    run = case.bind_here()
    exchange = run.problem.exchange
    before = exchange.world.sent
    run.refresh()
    names = ("Q", "M") if run.method.halo else ("Q",)
    widths = sum(table.data().shape[1] for name in names for table in run.tables[name].values())
    return exchange.world.sent - before, 8 * widths * exchange.shard.send.numel()


def waits(case: Case) -> tuple[list[tuple[str, bool]], bool]:
    """Whether rows are still on their way before a step and at its layers; and whether messages share their buffers."""
    run = case.bind_here()
    run.refresh()
    sync, optimizer, seen, buffers = run.sync, optimizer_of(run), list[tuple[str, bool]](), list[set[int]]()

    def pending() -> bool:
        return sync._arriving is not None or sync._fetched is not None

    before, arrive = sync.before, sync.arrive

    def noted(batch: Any) -> None:
        seen.clear()
        before(batch)
        seen.append(("before", pending()))

    def arriving(l: int) -> None:
        arrive(l)
        if l <= 2:
            seen.append((f"layer {l}", pending()))

    sync.before, sync.arrive = noted, arriving  # type: ignore[method-assign]
    for _ in range(3):
        for batch in run.batches():
            run.step(batch, optimizer)
        buffers.append({each.data_ptr() for each in sync.exchange._buffers.values()})
    return seen, buffers[1] == buffers[2] != set()


def diverged(case: Case) -> None:
    """Begin an epoch after one rank has changed a parameter by itself."""
    run = case.bind_here()
    run.refresh()
    for batch in run.batches():
        run.step(batch, optimizer_of(run))
    if torch.distributed.get_rank() == 1:
        next(iter(run.parameters.values())).data.view(-1)[0] += 1e-9
    next(run.batches())


def refused(case: Case) -> Any:
    """Bind, which is refused."""
    return case.bind_here()


def fit_differing(cases: list[Case], options: list[dict[str, Any]]) -> Any:
    """Train on two ranks of which each has a case and options of its own, which is refused."""
    rank = torch.distributed.get_rank()
    return fit(cases[rank], options[rank], None)


def diagnose(case: Case) -> dict[str, Any]:
    """Errors of a run after some steps, at the batches of the next one."""
    run = case.bind_here()
    run.refresh()
    optimizer = optimizer_of(run)
    for batch in batches_of(run, case.steps):
        run.step(batch, optimizer)
    batch = next(run.batches())
    error = lmc.diagnostics.gradient_error(run, batch)
    stale = lmc.diagnostics.staleness(run)
    return {
        "gradient": run.gradient(batch), "backward_sgd": error.backward_sgd, "full_batch": error.full_batch,
        "H": stale.H, "V": stale.V, "core": batch.n_id[: batch.num_core], "steps": run.num_batches,
        "state": dict(run.problem.model.state_dict()), "bias": lmc.diagnostics.bias(run),
    }  # fmt: skip


def gradient_beside_questions(case: Case) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The numbers that all ranks have alike, before and after a gradient of a run whose ranks agree about something."""
    run = case.bind_here()
    for _ in range(8):
        run.sync.agreement(lambda: True)
    optimizer = optimizer_of(run)
    for batch in batches_of(run, case.steps):
        run.step(batch, optimizer)
    alike = {name: run.numbers[name] for name in run.method.traits.replicated_numbers}
    before = {name: value.clone() for name, value in alike.items()}
    run.gradient(next(run.batches()))
    return before, alike


class StopAt(lmc.train.Callback):
    """Counts down the steps after which one rank wants to stop; ranks are asked before the hook of a step."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step(self, training: Any) -> None:
        self.steps -= 1


def resumable(case: Case, settings: dict[str, Any], folder: str | None, stop_after: int = 0) -> dict[str, Any]:
    """Train, or continue, a run; one rank wants to stop after some steps. What this rank ends with."""
    run = case.bind_here() if torch.distributed.is_initialized() else case.bind()
    asks = StopAt(stop_after)
    rank = 0 if run.sync is None else run.sync.world.rank
    training = Training(
        run, Settings(eval_every=2, **settings), None if folder is None else Path(folder), folder is not None,
        stop=lambda: bool(stop_after) and rank == 0 and asks.steps <= (run.sync is not None), callbacks=[asks],
    )  # fmt: skip
    cores: list[Tensor] = []
    step = run.step

    def seen(batch: Any, *args: Any) -> Any:
        cores.append(batch.n_id[: batch.num_core])
        return step(batch, *args)

    run.step = seen  # type: ignore[method-assign]
    stopped = ""
    try:
        for _ in training.epochs():
            pass
    except Interrupted as error:
        stopped = str(error)
    if run.sync is not None:
        run.sync.settle()
    state = run.state_dict(tables=False)
    return {
        "stopped": stopped,
        "position": (training._position.epoch, training._position.step),
        "records": [(e.loss, e.scores) for e in training.records],
        "parameters": {name: p.detach().clone() for name, p in run.problem.model.state_dict().items()},
        "tables": {name: table.data().clone() for name, table in run.named_tables().items()},
        "numbers": {name: value.clone() for name, value in run.numbers.items()},
        "ids": state["order"] if run.sync is None else run.sync.exchange.shard.ids,
        "owned": len(state["order"]),
        "offsets": state["offsets"].tolist(),
        "generator": state["generator"],
        "cores": cores,
        "steps": run.num_batches,
    }


class KillAt(lmc.train.Callback):
    """Kills this process after a number of steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step(self, training: Any) -> None:
        self.steps -= 1
        if self.steps == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(case: Case, options: dict[str, Any], folder: str, rank: int, steps: int) -> Any:
    """Train, and kill one rank after some steps."""
    callbacks = [KillAt(steps)] if torch.distributed.get_rank() == rank else []
    return fit(case, {**options, "callbacks": callbacks}, folder)
