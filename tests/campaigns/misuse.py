"""Wrong types, swapped arguments and impossible values, for every argument of the API and option of the commands.

The cases follow from the signatures and the dataclass fields, so a new argument is covered when it is declared.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import os
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import scipy.sparse as sp
import torch
from typer.testing import CliRunner

import lmc
from campaigns.harness import Tally, folder, one_line
from helpers import both_directions, random_graph
from lmc.cli import app, options
from lmc.methods import METHODS
from lmc.models import MODELS

TITLE = "misuse of the API and the commands"
PER_BLOCK = 400

Case = tuple[str, Callable[[], object]]

BAD: dict[Any, list[Any]] = {
    int: ["3", "x", 1.5, None, [1], {}, True, float("nan")],
    float: ["0.5", "x", None, [0.5], {}, True, float("nan")],
    bool: ["yes", 2, None, [True]],
    str: [3, None, ["x"], b"x", True],
    type(None): ["x", 3, 1.5, [1], {}, True, b"x", float("nan"), "3", "0.5", "yes", 2, ["x"], [True], [0.5]],
    Path: [3, ["x"], {}, 1.5],
    torch.device: [3.5, ["cpu"], {}],
    Callable: ["x", 3, [1]],
    Sequence: [3, {}, 1.5],
}
"""For every plain type some values that are not of this type."""
OTHER: list[Any] = ["x", 3, None, [1], {}]
"""Values that are of no class of the library."""


def bad_values(hint: Any) -> list[Any]:
    """Values that are of none of the types that an annotation names; none where that cannot be told."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    pools = []
    for kind in kinds:
        known = get_origin(kind) or kind
        if known is Literal:
            pools.append(["no such choice", 3, [1]])
        elif known in BAD or (known in (tuple, list) or getattr(known, "__name__", "") in ("Callable", "Sequence")):
            name = getattr(known, "__name__", "")
            pools.append(BAD.get(known) or BAD[Callable if name == "Callable" else Sequence])
        elif isinstance(known, type) and known.__module__.startswith("lmc.") and not getattr(known, "_is_protocol", 0):
            pools.append(OTHER)
        else:
            return []
    shown = [{repr(value) for value in pool} for pool in pools]
    return [value for value in pools[0] if all(repr(value) in others for others in shown)]


@cache
def graph() -> lmc.Graph:
    """The graph of all cases, in single precision."""
    g = random_graph(24)
    return dataclasses.replace(g, x=g.x.float())  # type: ignore[union-attr]


def model() -> lmc.models.Model:
    g = graph()
    return lmc.models.GCN(g.num_features, 4, g.num_classes, num_layers=2)


def arguments(function: Callable[..., object]) -> dict[str, Any]:
    """The annotations of a function's arguments, evaluated one by one."""
    target = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or name in ("self", "cls"):
            continue
        module = inspect.getmodule(inspect.unwrap(target)) or inspect.getmodule(function)
        try:
            alone = types.SimpleNamespace(__annotations__={name: parameter.annotation})
            found |= get_type_hints(alone, vars(module))
        except NameError:  # a type that is imported for type checkers alone
            found[name] = Any
    return found


def wrong_types(label: str, function: Callable[..., object], given: Mapping[str, Any]) -> Iterator[Case]:
    """Every argument in turn with every value that is not of its type; the other arguments are ``given``."""
    for name, hint in arguments(function).items():
        for value in bad_values(hint):
            yield (
                f"{label}({name}={value!r})",
                lambda name=name, value=value: function(**{**fresh(given), name: value}),
            )


def swapped(label: str, function: Callable[..., object], given: Mapping[str, Any]) -> Iterator[Case]:
    """Every two arguments exchanged."""
    for a, b in itertools.combinations(given, 2):
        yield (
            f"{label} with {a} and {b} exchanged",
            lambda a=a, b=b: function(**{**(all := fresh(given)), a: all[b], b: all[a]}),
        )


def fresh(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments; functions make one that a call may change."""
    return {k: value() if isinstance(value, types.FunctionType) else value for k, value in given.items()}


def api_cases() -> Iterator[Case]:
    """Wrong types and swapped arguments of the public functions, models, methods and records."""
    g = graph()
    whole = {"graph": g, "model": model, "method": lmc.methods.GAS(4, 1)}
    bound = {"graph": g, "model": model}
    calls: dict[str, tuple[Callable[..., object], dict[str, Any]]] = {
        "fit": (lmc.fit, {**whole, "epochs": 1, "device": "cpu"}),
        "bind": (lmc.methods.LMC4Conv(4, 1).bind, {**bound, "device": "cpu"}),
        "evaluate": (lmc.evaluate, {"model": model, "graph": g}),
        "load": (lmc.load, {"source": "tiny-like"}),
        "partition": (lmc.partition.partition, {"graph": g, "num_parts": 3}),
        "read_run": (lmc.results.read_run, {"run_dir": "runs"}),
        "Placement": (lmc.Placement, {}),
        "Settings": (lmc.train.Settings, {}),
        **{f"methods.{cls.__name__}": (cls, {}) for cls in METHODS.values()},
        **{
            f"models.{cls.__name__}": (cls, {"in_width": 6, "hidden": 4, "out_width": 4}) for cls in MODELS.values()
        },
    }  # fmt: skip
    if hasattr(lmc, "predict"):
        calls["predict"] = (lmc.predict, {"model": model, "graph": g})
    if hasattr(lmc, "load_run"):
        calls["load_run"] = (lmc.load_run, {"run_dir": "runs"})
    for label, (function, given) in calls.items():
        yield from wrong_types(label, function, given)
    for label in ("fit", "bind", "evaluate"):
        yield from swapped(label, *calls[label])
    yield from by_hand()


def by_hand() -> Iterator[Case]:
    """Misuse that no signature tells."""
    g = graph()
    edges, x, y, train = both_directions([(0, 1), (1, 2)]), torch.ones(3, 2), torch.tensor([0, 1, 0]), [0]
    whole = {"edge_index": edges, "x": x, "y": y, "train": train, "val": [1], "test": [2]}
    arrays: dict[str, list[Any]] = {
        "edge_index": [
            sp.coo_array(np.eye(3)), sp.csr_matrix(np.eye(3)), None, "edges", 3, edges.float(), edges[:1], edges.T,
            [[0, 1]], np.array([["a"], ["b"]]), edges.numpy().astype(object), edges + 9, -edges, torch.zeros(2, 0),
            {0: 1}, torch.ones(2, 3, dtype=torch.complex64), edges.bool(), edges.to_sparse(), sp.csr_array([[0, 1]]),
        ],
        "x": [
            "x", 3, [["a"]], x[:2], x[0], x * float("nan"), torch.zeros(3, 0), x.to(torch.complex64),
            np.array([[None] * 2] * 3), {1: 2}, np.full((3, 2), np.inf), torch.ones(3, 2, 2),
        ],
        "y": [
            "y", 3, [None, 1, 0], torch.tensor([0.5, 1.5, 2.5]), torch.tensor([-5, 0, 1]), torch.ones(3, 2, 2),
            np.array(["a", "b", "c"]), torch.zeros(0), y.to(torch.complex64), torch.full((3, 2), 7),
        ],
        "train": ["x", [5], [-1], [0.5], torch.ones(3), [[0]], [True], torch.tensor([True]), [1], {0}, 0],
        "num_classes": [1, 0, -1, "2", 1.5],
        "name": [3, None],
        "symmetrise": ["yes", 3],
    }  # fmt: skip
    lmc.Graph.from_edges(**whole)  # the arrays that are not exchanged are valid
    for name, values in arrays.items():
        for k, value in enumerate(values):
            yield (
                f"Graph.from_edges({name}: value {k}, {type(value).__name__})",
                lambda name=name, value=value: lmc.Graph.from_edges(**{**whole, name: value}),
            )
    run = lmc.methods.GAS(4, 1).bind(g, model(), device="cpu")
    other = lmc.methods.GAS(4, 1).bind(g, model(), device="cpu", seed=1)
    larger = lmc.models.GCN(99, 4, 4)
    batch = next(other.batches())
    deeper = {
        "accumulate of another run's batch": lambda: run.accumulate(batch),
        "gradient of another run's batch": lambda: run.gradient(batch),
        "accumulate(None)": lambda: run.accumulate(None),  # type: ignore[arg-type]
        "a model of other widths": lambda: lmc.fit(g, larger, lmc.methods.GAS(4, 1), epochs=1, device="cpu"),
        "evaluate of other widths": lambda: lmc.evaluate(larger, g),
        "parts of another graph": lambda: lmc.methods.GAS(4, 1).bind(g, model(), torch.zeros(3).long(), device="cpu"),
        "parts as a text": lambda: lmc.methods.GAS(4, 1).bind(g, model(), "metis", device="cpu"),  # type: ignore[arg-type]
        "more parts than nodes": lambda: lmc.methods.GAS(400, 1).bind(g, model(), device="cpu"),
        "a method as a name": lambda: lmc.fit(g, model(), "gas", epochs=1),  # type: ignore[arg-type]
        "a torch module": lambda: lmc.fit(g, torch.nn.Linear(3, 3), lmc.methods.GAS(4, 1)),  # type: ignore[arg-type]
        "gradient_error of a batch of another run": lambda: lmc.diagnostics.gradient_error(run, batch),
        "load_state_dict of nothing": lambda: run.load_state_dict({}),
        "resume without a folder": lambda: lmc.fit(g, model(), lmc.methods.GAS(4, 1), resume=True, device="cpu"),
        "load of a list": lambda: lmc.load([1, 2]),
        "load of a missing file": lambda: lmc.load("missing.npz"),
        "load of a folder": lambda: lmc.load("/"),
        "load of an unknown name": lambda: lmc.load("coraa"),
        "load of an empty name": lambda: lmc.load(""),
        "load of a name with NUL": lambda: lmc.load("a\0b.npz"),
        "save of no graph": lambda: lmc.save("graph", "x.npz"),  # type: ignore[arg-type]
        "save into a file": lambda: lmc.save(g, "/dev/null/x.npz"),
        "save without suffix": lambda: lmc.save(g, "x"),
        "seed of 70 bits": lambda: lmc.fit(g, model(), lmc.methods.GAS(4, 1), seed=2**70, device="cpu"),
        "epochs 0": lambda: lmc.fit(g, model(), lmc.methods.GAS(4, 1), epochs=0, device="cpu"),
        "lr 0": lambda: lmc.fit(g, model(), lmc.methods.GAS(4, 1), lr=0, device="cpu"),
        "lr inf": lambda: lmc.fit(g, model(), lmc.methods.GAS(4, 1), lr=float("inf"), device="cpu"),
        "run_dir in a file": lambda: lmc.fit(
            g, model(), lmc.methods.GAS(4, 1), epochs=1, run_dir="/dev/null/x", device="cpu"
        ),
    }
    for device in ("meta", "mps", "gpu", "cuda", "cuda:99", "xpu", "", "cpu:x"):
        if not (device == "cuda" and torch.cuda.is_available()):
            deeper[f"device {device!r}"] = lambda device=device: lmc.fit(
                g, model(), lmc.methods.GAS(4, 1), epochs=1, device=device
            )
    yield from deeper.items()


VALUES: dict[Any, list[str]] = {
    int: ["x", "1.5", "", "nan", "-7"],
    float: ["x", "", "nan", "-7", "inf", "1e999"],
}
"""Values that no option of these types of ours accepts."""
ODD_TEXTS = ["no-such-value", "", ":", "a=b", "\0", "x" * 300]
FREE_TEXTS = {"--run-dir", "--name", "--out", "--data-dir"}


def cli_cases() -> Iterator[Case]:
    """Every option of the commands with values that it cannot have."""
    for command, positional in {"train": ["graph.npz"], "compare": ["graph.npz"]}.items():
        base = [command, *positional, "--epochs", "1", "--parts", "3", "--clusters", "1", "--device", "cpu"]
        for flag, kind in options_of(command).items():
            values = VALUES.get(kind, [] if flag in FREE_TEXTS else ODD_TEXTS)
            for value in values[: 4 if flag == "--clip" else None]:  # no norm is above inf, which is no mistake
                yield f"lmc {command} {flag}={value[:30]!r}", lambda a=[*base, f"{flag}={value}"]: invoke(*a)
    texts = [
        *("train", "train missing.npz", "train coraa", "train /", "nonsense", "train graph.npz --nonsense"),
        *("train graph.npz --run-dir /dev/null/x --epochs 1", "compare graph.npz --methods gas,gas"),
        *("train graph.npz --device meta", "train graph.npz --device mps", "train graph.npz --device cuda:99"),
        *("train graph.npz --seed 99999999999999999999", "compare graph.npz --seed 99999999999999999999"),
        *("train graph.npz --method lmc:alpha=x", "train graph.npz --method lmc:alpha=2", "methods nonsense"),
        *("train graph.npz --method lmc:alpha", "train graph.npz --method lmc:=3", "models nonsense"),
        *("train graph.npz --model gcn:layers=0", "train graph.npz --model gcn:layers=x", "bench nonsense"),
        *("train graph.npz --model gcn:hidden=-1", "train graph.npz --model gcn:layers=2:layers=3", "bench speed /"),
        *("train graph.npz --history disk:/dev/null/x --epochs 1", "train tiny-like@x", "train tiny-like@-1"),
        *("datasets --data-dir missing", "train graph.npz --memory 4XB", "train graph.npz --memory=-1"),
        *("train graph.npz --method cmc --parts 3 --clusters 9", "compare graph.npz --methods ,"),
    ]
    for text in texts:
        yield f"lmc {text}", lambda text=text: invoke(*text.split())


@cache
def options_of(command: str) -> dict[str, Any]:
    """The flags of a command and the types of their values; switches have none and are left out."""
    fields = get_type_hints({"train": options.Train, "compare": options.Compare}[command])
    kinds = {name: (set(get_args(hint)) or {hint}) - {type(None)} for name, hint in fields.items()}
    return {
        f"--{name.replace('_', '-')}": kind
        for name, (kind, *_) in kinds.items()
        if kind is not bool and name != "dataset"
    }


def invoke(*arguments: str) -> None:
    """Run a command in a folder with a graph; a refusal of one line is raised as the library's error."""
    here = Path.cwd()
    with folder() as path:
        os.chdir(path)
        try:
            lmc.save(graph(), "graph.npz")
            result = CliRunner().invoke(app, list(arguments))
        finally:
            os.chdir(here)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code != 0:
        said = result.stderr.strip()
        one_line(said.splitlines()[-1] if said.startswith("Usage:") else said)
        raise lmc.errors.ConfigError(said.replace("\n", " "))


@cache
def cases() -> list[Case]:
    """All misuses, by name."""
    return [*api_cases(), *cli_cases()]


def count() -> int:
    """The number of cases."""
    return len(cases())


def run(number: int, tally: Tally) -> None:
    """One misuse, which has to be refused."""
    name, call = cases()[number]
    tally.attempt(name, call, "refused")
