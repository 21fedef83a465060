"""``python -m experiments plan``: bytes, traffic and time of the ranks of a run on a graph that is not here."""

# Annotations are not postponed in this file: the fields become command-line options, and typer reads their types.
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

import lmc.data
from experiments.rank_plan import GRAPHS, GraphSize, Machine, RankPlan, Ratios, measured_ratios, plan_rank, stand_in
from lmc.bench.rank_model import Network
from lmc.cli.console import TextTable, console, facts, milliseconds, number, seconds, size
from lmc.cli.lists import at_least_one, division, methods_in, parse_list, positive
from lmc.cli.options import under
from lmc.cli.plan import parse_memory
from lmc.cli.spec import parse_method, parse_model
from lmc.errors import ConfigError
from lmc.files import replace, writable
from lmc.methods import BackwardSGD, ClusterMethod
from lmc.partition import partition

KEPT = ("features", "histories", "structure", "batches", "rows in transfer", "step and parameters", "features as given")
_size, _machine, _ratio, _trained = map(under, ("Graph", "Machine", "Division", "Method and model"))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options."""

    graph: Annotated[str | None, typer.Argument(help="papers100M, or nothing where its size is given.")] = None
    nodes: Annotated[int | None, _size("Nodes.")] = None
    edges: Annotated[int | None, _size("Undirected edges.")] = None
    features: Annotated[int | None, _size("Features of a node.")] = None
    classes: Annotated[int | None, _size("Classes.")] = None
    method: Annotated[str, _trained("A method of parts and its options.")] = "cmc"
    model: Annotated[str, _trained("A model and its options.")] = "gcn:layers=3:hidden=256"
    precision: Annotated[str, _trained("Number format of rows and tables: float32 or bfloat16.")] = "float32"
    ranks: Annotated[str, _ratio("Numbers of ranks, comma-separated; one GPU each.")] = "8,16,32,64"
    core: Annotated[int, _ratio("Core rows of a step of a rank.")] = 131072
    mirrors: Annotated[float | None, _ratio("Mirrors per owned row.", show_default="measured on --like")] = None
    halo: Annotated[float | None, _ratio("Halo rows per core row.", show_default="measured on --like")] = None
    like: Annotated[str, _ratio("A graph that is divided to measure mirrors and halos.")] = "arxiv-like@0.3"
    like_parts: Annotated[str, _ratio("parts/clusters of that graph.")] = "320/40"
    gpu_memory: Annotated[str, _machine("Of every rank.")] = "80GB"
    host_memory: Annotated[str, _machine("Of every rank: that of a machine over its GPUs.")] = "256GB"
    bandwidth: Annotated[str, _machine("Bytes a second into and out of a rank.")] = "25GB"
    latency: Annotated[float, _machine("Microseconds of a message.")] = 20.0
    host_bandwidth: Annotated[str, _machine("Bytes a second between host and GPU.")] = "25GB"
    disk_bandwidth: Annotated[str, _machine("Bytes a second between disk and GPU.")] = "3GB"
    rows_per_second: Annotated[
        float, _machine("Core rows of steps a second; CMC on an H200, arxiv-like: 10 million.")
    ] = 1e7
    out: Annotated[Path | None, _machine("A file for the table, as markdown.")] = None


def plan(options: Plan) -> None:
    """Count what the ranks of a run on a huge graph keep, exchange and take; nothing is loaded or trained."""
    out = console()
    graph_size, machine, method = size_of(options), machine_of(options), method_of(options)
    model = parse_model(options.model, stand_in(graph_size, 1, 0), seed=0)
    numbers = parse_list(options.ranks, "--ranks", lambda text: at_least_one("--ranks", text))
    core = at_least_one("--core", options.core)
    ratios, words = ratios_of(options, numbers)
    plans = [plan_rank(graph_size, model, method, w, core, ratios[w], machine, options.precision) for w in numbers]
    graph = f"{graph_size.nodes:,} nodes, {graph_size.edges:,} edges, {graph_size.features} features, "
    rows = [
        ("graph", f"{options.graph or 'a graph'}: {graph}{graph_size.classes} classes"),
        ("method", f"{options.method}, {options.model}, {options.precision}, {core:,} core rows a step of a rank"),
        ("mirrors and halo", words),
        ("a rank", f"GPU of {options.gpu_memory}, {options.host_memory} of the host; {options.host_bandwidth}/s to the "
                   f"host, {options.disk_bandwidth}/s to the disk; {options.rows_per_second:,.0f} core rows a second"),
        ("network", f"{options.bandwidth}/s into and out of a rank, {options.latency:g} us a message"),
    ]  # fmt: skip
    out.print(facts(rows))
    table = table_of(plans)
    out.print(table.rich())
    if options.out is not None:
        with writable(options.out.parent):
            replace(options.out, table.markdown().encode())


def size_of(options: Plan) -> GraphSize:
    """The graph in numbers: those of a name, and those that are given."""
    if options.graph is not None and options.graph not in GRAPHS:
        raise ConfigError(
            f"expected one of {', '.join(GRAPHS)} (got {options.graph!r}): or give --nodes, --edges, --features and "
            "--classes"
        )
    known = dataclasses.asdict(GRAPHS[options.graph]) if options.graph else {}
    names = [field.name for field in dataclasses.fields(GraphSize)]
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    missing = [f"--{name}" for name in names if name not in known | given]
    if missing:
        raise ConfigError(f"expected {', '.join(missing)} (got none): give them, or name {', '.join(GRAPHS)}")
    return GraphSize(**{name: at_least_one(f"--{name}", value) for name, value in (known | given).items()})


def machine_of(options: Plan) -> Machine:
    """What a rank has."""
    network = Network(parse_memory(options.bandwidth), positive(str(options.latency), "--latency") * 1e-6)
    rate = positive(str(options.rows_per_second), "--rows-per-second")
    gpu, host, to_host, to_disk = map(
        parse_memory, (options.gpu_memory, options.host_memory, options.host_bandwidth, options.disk_bandwidth)
    )
    return Machine(gpu, host, network, to_host, to_disk, rate)


def method_of(options: Plan) -> ClusterMethod:
    """The method, which has to have a plan and to exchange rows after steps."""
    method = parse_method(options.method)
    if not isinstance(method, ClusterMethod) or isinstance(method, BackwardSGD) or "step" not in method.traits.sync:
        raise ConfigError(f'expected a method of parts that has sync="step" (got {options.method}): use cmc')
    return method


def ratios_of(options: Plan, numbers: list[int]) -> tuple[dict[int, Ratios], str]:
    """The ratios for every number of ranks, and in words where they come from."""
    graph = lmc.data.load(options.like).training_graph
    (like,) = methods_in(options.like_parts, options.method.partition(":")[0]).values()
    assert isinstance(like, ClusterMethod)
    parts = partition(graph, division(options.like_parts)["parts"])
    given = {name: value for name in ("mirrors", "halo") if (value := getattr(options, name)) is not None}
    for name, value in given.items():
        positive(str(value), f"--{name}")
    found = {w: dataclasses.replace(measured_ratios(graph, parts, like, w), **given) for w in numbers}
    measured = [name for name in ("mirrors", "halo") if name not in given]
    words = [f"{name} {value:g} (assumed)" for name, value in given.items()]
    words += [f"{' and '.join(measured)} measured on {options.like} in {options.like_parts} parts"] * bool(measured)
    return found, "; ".join(words)


def table_of(plans: list[RankPlan]) -> TextTable:
    """What a rank keeps and where, and what a step exchanges and takes."""

    def row(words: str, value: object) -> list[str]:
        return [words, *(value(p) for p in plans)]  # type: ignore[operator]

    def kept(name: str) -> object:
        return lambda p: f"{size(int(p.places[name][0]))} {p.places[name][1]}" if p.places[name][0] else "-"

    def tier(name: str) -> object:
        return lambda p: size(int(p.tier(name))) if p.tier(name) else "-"

    rows = [
        row("owned rows", lambda p: f"{p.owned:,}"),
        row("mirrors per owned row", lambda p: number(p.mirrors / p.owned, 2)),
        row("halo rows per core row", lambda p: number(p.halo, 2)),
        *(row(name, kept(name)) for name in KEPT),
        *(row(f"in all, {name}", tier(name)) for name in ("GPU", "host", "disk")),
        row("steps an epoch", lambda p: f"{p.steps:,}"),
        row("rows sent a step", lambda p: size(int(p.sent))),
        row("to and from the GPU, a step", lambda p: size(int(p.moved)) if p.moved else "-"),
        row("step: compute, ms", lambda p: milliseconds(1e3 * p.compute)),
        row("step: network, ms", lambda p: milliseconds(1e3 * p.exchange)),
        row("step: to and from the GPU, ms", lambda p: milliseconds(1e3 * p.transfer) if p.transfer else "-"),
        row("epoch", lambda p: seconds(p.epoch)),
        row("bound by", lambda p: p.bound),
    ]
    headers = ["one rank", *(f"{p.ranks} ranks" for p in plans)]
    caption = (
        "modelled: nothing was run at this size. Tables, features and structure have the rows of owned nodes and of "
        "mirrors; computation, network and host transfers of a step do not overlap; a GPU and a host are filled to 90 %"
    )
    return TextTable(headers, rows, caption)
