"""Generated graphs, arrays, options and calls: each gives what a plain computation gives, or is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, get_args, get_origin

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

import lmc
from campaigns.harness import Tally, Wrong, folder
from helpers import random_graph
from lmc.cli.spec import method_options, model_options, parse_method, parse_model
from lmc.errors import LmcError
from lmc.graph import CSR, SPLITS
from lmc.methods import METHODS
from lmc.models import MODELS

TITLE = "generated graphs, arrays and options"
CASES, PER_BLOCK = 48, 12
EXAMPLES = 25
"""Inputs that are drawn in a case."""

# ---- arrays

INTEGERS = st.sampled_from(["int64", "int32", "int16", "uint8", "uint32", "uint64", ">i8", ">i4", "float64", "bool"])
FLOATS = st.sampled_from(["float32", "float64", "float16", ">f4", ">f8", "int64", "uint16", "complex64", "longdouble"])
SOMETIMES = st.integers(0, 11).map(lambda k: k == 7)  # not 0, which is the first value that is drawn


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of ``Graph.from_edges``: mostly valid, each with a small chance to be odd."""
    n = draw(st.integers(1, 12))
    pairs = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=20))
    symmetrise = draw(st.booleans())
    if not symmetrise and not draw(SOMETIMES):
        pairs = sorted({p for a, b in pairs if a != b for p in ((a, b), (b, a))})
    if draw(SOMETIMES):
        pairs.append((draw(st.integers(-3, n + 3)), draw(st.integers(-3, 2**40))))
    directed = not symmetrise and draw(st.booleans())
    if not pairs and not draw(SOMETIMES):
        pairs, n = [(0, 1), (1, 0)], max(2, n)
    edges = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    weights = 1.0 + 0.5 * ((edges[0] + edges[1]) % 3)  # the same in both directions
    classes, task = draw(st.integers(2, 4)), draw(st.sampled_from(["classes", "labels", "regression"]))
    y = np.array(draw(st.lists(st.integers(0, classes - 1), min_size=n, max_size=n)))
    if task == "labels":
        y = (y[:, None] == np.arange(classes)).astype(np.int64)
        y[draw(st.integers(0, n - 1))] = 1  # several labels per node, so that they are no classes
    x = np.array(draw(st.lists(st.lists(st.integers(-3, 3), min_size=2, max_size=2), min_size=n, max_size=n)))
    splits = ["train", *draw(st.lists(st.sampled_from([*SPLITS, ""]), min_size=n - 1, max_size=n - 1))]
    arrays: dict[str, Any] = {
        "edge_index": cast(draw, edges, INTEGERS),
        "x": cast(draw, x, FLOATS),
        "y": cast(draw, y, INTEGERS),
        **{split: as_split(draw, [k for k in range(n) if splits[k] == split], n) for split in SPLITS},
        "symmetrise": symmetrise,
        "directed": directed,
        "edge_weight": cast(draw, weights, FLOATS) if draw(st.booleans()) else None,
        "task": draw(st.sampled_from([None, "classes", "labels", "regression"])) if draw(SOMETIMES) else task,
    }  # fmt: skip
    if draw(SOMETIMES):
        arrays[draw(st.sampled_from(sorted(arrays)))] = draw(ODD)
    return arrays


ODD = st.one_of(
    st.none(), st.text(max_size=4), st.integers(-2, 2), st.floats(), st.lists(st.integers(-3, 3), max_size=5),
    st.lists(st.floats(), max_size=4), st.lists(st.lists(st.integers(), max_size=2), max_size=3), st.just({}),
    st.just(np.array(["a", "b"])), st.just(np.array([None, 1])), st.just(np.zeros((0, 2))), st.just(torch.zeros(2, 2)),
    st.just(np.array(["2020-01-01"], dtype="datetime64[D]")), st.just(torch.tensor(3)), st.just(object()),
    st.just(np.zeros(3, dtype=[("a", int)])), st.just(np.ma.masked_array([1, 2], [True, False])),
)  # fmt: skip
"""Things that are no array, or not the expected one."""


def cast(draw: st.DrawFn, array: np.ndarray, dtypes: st.SearchStrategy[str]) -> Any:
    """The same numbers in some dtype, layout and container."""
    dtype = draw(dtypes) if draw(st.integers(0, 4)) == 3 else None
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        made = array if dtype is None else array.astype(dtype)
    form = draw(st.sampled_from(["numpy", "tensor", "list", "fortran", "strided", "read-only"]))
    if form == "tensor":
        with contextlib.suppress(TypeError, ValueError):
            return torch.from_numpy(np.ascontiguousarray(made))
    if form == "list":
        return made.tolist()
    if form == "fortran":
        return np.asfortranarray(made)
    if form == "strided":
        return np.repeat(made, 2, axis=-1)[..., ::2]
    if form == "read-only":
        made = made.copy()
        made.setflags(write=False)
    return made


def as_split(draw: st.DrawFn, nodes: list[int], n: int) -> Any:
    """A split as a mask or as node numbers; an empty one is None, but sometimes an empty array."""
    form = draw(st.sampled_from(["mask", "numbers", "tensor", "list"]))
    if draw(SOMETIMES):
        form = draw(st.sampled_from(["none", "integer mask"]))
    elif not nodes and not draw(SOMETIMES):
        form = "none"
    mask = np.isin(np.arange(n), nodes)
    return {
        "mask": mask, "numbers": np.array(nodes, dtype=np.int64), "tensor": torch.from_numpy(mask), "list": nodes,
        "none": None, "integer mask": mask.astype(np.int64),
    }[form]  # fmt: skip


def check_graph(arrays: dict[str, Any]) -> None:
    """A graph that is accepted holds the numbers that were given, and can be trained on, saved and loaded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        g = lmc.Graph.from_edges(**arrays)
    n, dense = g.num_nodes, torch.zeros(g.num_nodes, g.num_nodes)
    edges = plain(arrays["edge_index"]).astype(np.int64)
    weighted = arrays["edge_weight"] is not None
    dense[edges[1], edges[0]] = torch.from_numpy(plain(arrays["edge_weight"]).astype(np.float32)) if weighted else 1.0
    if arrays["symmetrise"] is True:  # the weight of a pair is the same wherever it is listed
        dense = dense.maximum(dense.T).fill_diagonal_(0)
    entries = g.edge_weight.float() if g.edge_weight is not None else torch.ones(g.adj.nnz)
    same(torch.zeros(n, n).index_put_((g.adj.row_index(), g.adj.indices.long()), entries), dense, "the edges")
    same(g.x.to_dense() if isinstance(g.x, CSR) else g.x, torch.from_numpy(plain(arrays["x"]).astype(np.float64)), "x")
    if not bool(torch.as_tensor(g.x.data if isinstance(g.x, CSR) else g.x).isfinite().all()):
        raise Wrong("features that are not finite were accepted")
    if arrays["y"] is not None:
        y = torch.from_numpy(plain(arrays["y"]).astype(np.float64))
        same(g.y.double().reshape(-1), y.reshape(-1), "y")
    for split in SPLITS:
        same(getattr(g, split), wanted_mask(arrays[split], n), split)
    if bool((g.train & g.val).any() | (g.train & g.test).any() | (g.val & g.test).any()):
        raise Wrong("splits that share nodes were accepted")
    saved_and_loaded(g)
    if bool(g.train.any()):
        trained(g)


def plain(array: Any) -> np.ndarray:
    """An array as numpy has it, in the byte order of this machine."""
    made = np.asarray(array.numpy() if isinstance(array, torch.Tensor) else array)
    return made.astype(made.dtype.newbyteorder("="))


def wanted_mask(nodes: Any, n: int) -> torch.Tensor:
    """The mask of a split, by what the arguments of ``Graph.from_edges`` say."""
    mask = torch.zeros(n, dtype=torch.bool)
    if nodes is not None:
        mask[torch.from_numpy(plain(nodes)) if len(nodes) else []] = True
    return mask


def same(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
    if got.shape != want.shape or not torch.equal(got.double(), want.double()):
        raise Wrong(f"{what} changed: {got.tolist()} instead of {want.tolist()}")


def saved_and_loaded(g: lmc.Graph) -> None:
    """A file holds the whole graph."""
    with folder() as path:
        lmc.save(g, path / "g.npz")
        if lmc.load(path / "g.npz").checksum != g.checksum:
            raise Wrong("the saved graph is another one when it is loaded")


def trained(g: lmc.Graph) -> None:
    """One part and plain SGD: the first loss of LMC4Conv is that of the full batch."""
    model = lmc.models.GCN(g.num_features, 3, g.num_classes, num_layers=2).double()
    g64 = dataclasses.replace(g, x=g.x.to(dtype=torch.float64))
    losses = []
    for method in (lmc.methods.FullBatch(), lmc.methods.LMC4Conv(num_parts=1, clusters_per_batch=1)):
        run = method.bind(g64, model, device="cpu")
        run.refresh()
        losses.append(float(run.accumulate(next(run.batches())).loss))
    if not (math.isfinite(losses[0]) and math.isclose(*losses, rel_tol=1e-9, abs_tol=1e-12)):
        raise Wrong(f"the losses of one part and of the full batch differ: {losses}")


# ---- options of methods and models


@cache
def graph() -> lmc.Graph:
    return random_graph(20)


def values_of(hint: Any) -> st.SearchStrategy[str]:
    """Texts for an option of this type: good ones, and some that are not."""
    kinds = get_args(hint) if not isinstance(hint, type) and get_origin(hint) is not None else (hint,)
    good: list[str] = [str(value) for value in kinds if isinstance(value, str)]
    good += ["1", "2", "3", "7"] if int in kinds else []
    good += ["0", "0.5", "1", "0.01", "2"] if float in kinds else []
    good += ["yes", "no"] if bool in kinds else []
    bad = ["none", "x", "-1", "", "nan", "inf", "1e30", "maybe", "1.5", "5000"]
    return SOMETIMES.flatmap(lambda odd: st.sampled_from(bad if odd or not good else good))


@st.composite
def specs(draw: st.DrawFn) -> tuple[str, str]:
    """A method and a model with some of their options, as the command line writes them."""
    written = []
    method = draw(st.sampled_from(sorted(METHODS)))
    trains = METHODS[method].traits.trains
    models = {"recurrent": ["recgcn"], "layered": [name for name in sorted(MODELS) if name != "recgcn"]}
    fitting = ["sign"] if method == "sign" else [name for kind in sorted(trains) for name in models[kind]]
    model = draw(st.sampled_from(sorted(MODELS) if draw(SOMETIMES) else fitting))
    for name, options_of in ((method, method_options), (model, model_options)):
        text = name
        options = options_of(name)
        for option in draw(st.lists(st.sampled_from(options), max_size=3, unique_by=lambda o: o.name)):
            text += f":{option.name}={draw(values_of(option.hint))}"
        written.append(text)
    return written[0], written[1]


def check_spec(spec: tuple[str, str]) -> None:
    """A method and a model that are accepted together train two steps with finite gradients."""
    method_text, model_text = spec
    g = graph()
    method, model = parse_method(method_text), parse_model(model_text, g, 0)
    run = method.bind(g, model.double(), device="cpu")
    run.refresh()
    for batch, _ in zip(run.batches(), range(2), strict=False):
        loss = run.accumulate(batch).loss
        if not bool(loss.isfinite()):
            raise Wrong(f"the loss of {spec} is {float(loss)}")
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if not gradients or not all(bool(gradient.isfinite().all()) for gradient in gradients):
        raise Wrong(f"the gradient of {spec} is missing or not finite")


KINDS: tuple[tuple[str, st.SearchStrategy[Any], Callable[[Any], None]], ...] = (
    ("arrays of a graph", graphs(), check_graph),
    ("arrays of a graph", graphs(), check_graph),
    ("options of methods and models", specs(), check_spec),
)


def run(number: int, tally: Tally) -> None:
    """Many inputs from one seed; a wrong one is reduced to a simple one."""
    label, inputs, check = KINDS[number % len(KINDS)]
    counts = Tally()

    @seeded(number)
    @settings(
        max_examples=EXAMPLES, database=None, deadline=None, print_blob=False, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
    )  # fmt: skip
    @given(inputs)
    def property_holds(value: Any) -> None:
        counts.tried += 1
        try:
            check(value)
        except LmcError as error:
            counts.refused += 1
            if "\n" in str(error):
                raise Wrong(f"the refusal has several lines: {error}") from error
        except Wrong as error:
            raise Wrong(f"{value}: {error}") from error
        else:
            counts.right += 1

    whole = Tally()
    whole.attempt(f"{label}, seed {number}", property_holds, "right")
    tally.add(Tally(counts.tried, counts.right, counts.refused, whole.wrong))
