"""Groups of trainings that several tables and figures show: they are trained once."""

from collections.abc import Callable, Sequence

from experiments.paper.item import DATASETS, Item
from experiments.paper.training import Training

CONV = ("ogbn-arxiv", "flickr", "reddit", "ppi")
PLANETOID = ("cora", "citeseer", "pubmed")
LARGE_REC = ("ppi", "reddit", "amazon", "ogbn-arxiv", "ogbn-products")
METHODS = {"gcn": ("full", "cluster", "gas", "fm", "lmc"), "gcnii": ("full", "gas", "fm", "lmc")}
SMALL_REC = ("backward-sgd", "sse", "cluster", "gas", "lmc4rec")
REC = ("sse", "ignn", "full", "graphsaint", "cluster", "gas", "lmc4rec")
BATCH_SIZES = (1, 2, 5, 10)
SMALL_BATCH = "lmc:alpha=0.4:score=2x-x^2"
"""LMC4Conv under small batch sizes: the best setting of the paper's ablation."""


def conv(item: Item, dataset: str, model: str) -> Training:
    """The methods of the paper's efficiency experiments, with the preset of LMC4Conv."""
    return item.group(dataset, model, METHODS[model])


def small_rec(item: Item, dataset: str, partition: str) -> Training:
    """RecGCN on a small graph; the errors of H and V are measured along training."""
    return item.group(dataset, "recgcn", SMALL_REC, partition=partition, probe="estimates")


def large_rec(item: Item, dataset: str) -> Training:
    """RecGCN on a large graph, with the memory of a step."""
    return item.group(dataset, "recgcn", REC, probe="memory")


def rec_batch(item: Item, dataset: str, clusters: int) -> Training:
    """RecGCN with small batches: 400 parts on AMAZON, 80 on Ogbn-arxiv."""
    parts = {"amazon": 400, "ogbn-arxiv": 80}[dataset]
    return item.group(dataset, "recgcn", ("gas", "lmc4rec"), parts=parts, clusters=clusters)


def by_title(datasets: Sequence[str], make: Callable[[str], Training]) -> dict[str, Training]:
    """The groups by the paper's names of the data sets."""
    return {DATASETS[dataset]: make(dataset) for dataset in datasets}
