"""Optimisers and schedulers of ``lmc.fit``: their spellings, their learning rates, and that they survive a resume."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingWarmRestarts,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

import lmc
from lmc.errors import CheckpointError, ConfigError
from lmc.methods import GAS
from lmc.train import PerStep, Settings
from lmc.train.optimizers import OPTIMIZERS, SCHEDULERS, optimizer_options, scheduler_options

STEPS = 2
"""Steps in an epoch."""


@pytest.fixture(scope="module")
def graph() -> lmc.Graph:
    return lmc.load("tiny-like", scale=0.1)


def model_of(graph: lmc.Graph) -> lmc.models.Model:
    return lmc.models.GCN(graph.num_features, 4, graph.num_classes, dropout=0.5)


def fit(graph: lmc.Graph, **options: Any) -> tuple[list[Tensor], lmc.RunRecord]:
    """The parameters after training, and the record."""
    model = options.pop("model", None) or model_of(graph)
    given = {"epochs": 4, "device": "cpu", "eval_every": 0} | options
    record = lmc.fit(graph, model, GAS(STEPS, 1), **given)
    return [p.detach().clone() for p in model.parameters()], record


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


def rates(record: lmc.RunRecord) -> list[float]:
    return [(epoch.logged or {})["lr"] or 0.0 for epoch in record.epochs]


def test_a_spec_a_factory_and_an_instance_train_alike(graph: lmc.Graph) -> None:
    by_spec, record = fit(graph, optimizer="adamw:weight_decay=0.1:betas=0.8/0.9", lr=0.02)
    model = model_of(graph)
    by_instance, same_record = fit(
        graph, model=model, optimizer=AdamW(model.parameters(), lr=0.02, weight_decay=0.1, betas=(0.8, 0.9))
    )
    by_factory, _ = fit(graph, optimizer=lambda p: AdamW(p, lr=0.02, weight_decay=0.1, betas=(0.8, 0.9)))
    assert same(by_spec, by_factory)
    assert same(by_spec, by_instance)
    assert record.config["optimizer"] == same_record.config["optimizer"]
    assert (record.config["optimizer"]["name"], record.config["weight_decay"], record.config["lr"]) == (
        "AdamW",
        0.1,
        0.02,
    )
    assert same(fit(graph)[0], fit(graph, optimizer="adam")[0])
    assert same(fit(graph, optimizer="adam:lr=0.1")[0], fit(graph, lr=0.1)[0])
    assert not same(fit(graph, optimizer="sgd")[0], fit(graph, optimizer="sgd", weight_decay=0.5)[0])


def test_the_learning_rates_of_the_named_schedulers(graph: lmc.Graph) -> None:
    def of(scheduler: str, **options: Any) -> list[float]:
        return rates(fit(graph, lr=0.1, scheduler=scheduler, **options)[1])

    cosine = [0.05 * (1 + math.cos(math.pi * t / 4)) for t in range(4)]
    assert of("cosine") == pytest.approx(cosine)
    assert of("cosine:floor=0.2:epochs=2") == pytest.approx([0.1, 0.06, 0.02, 0.02])
    assert of("cosine:warmup=2") == pytest.approx([0.05, 0.1, 0.1, 0.05])
    assert of("step:size=2:gamma=0.5") == pytest.approx([0.1, 0.1, 0.05, 0.05])
    assert of("constant:warmup=4") == pytest.approx([0.025, 0.05, 0.075, 0.1])
    # recorded at the end of an epoch of two steps, when the rate of the next step is set
    assert of("constant:warmup=4:every=step") == pytest.approx([0.0375, 0.0625, 0.0875, 0.1])


def test_a_plateau_reads_the_validation_score_of_evaluations(graph: lmc.Graph) -> None:
    # the rate is too small to change a score: every evaluation after the first is one without improvement
    options = {"lr": 1e-12, "epochs": 6, "scheduler": "plateau:patience=0:factor=0.5"}
    assert rates(fit(graph, **options, eval_every=1)[1]) == pytest.approx(
        [1e-12, 1e-12, 5e-13, 2.5e-13, 1.25e-13, 6.25e-14]
    )
    found = rates(fit(graph, **options, eval_every=2)[1])
    assert found == pytest.approx([1e-12, 1e-12, 1e-12, 1e-12, 5e-13, 5e-13])
    with pytest.raises(ConfigError, match=r"validation scores for the scheduler \(got eval_every=0\)"):
        fit(graph, **options)


def warm_restart(optimizer: Optimizer) -> LRScheduler:
    first = StepLR(optimizer, 1, 0.5)
    return SequentialLR(optimizer, [first, CosineAnnealingWarmRestarts(optimizer, 2)], milestones=[2])


@pytest.mark.parametrize(
    ("optimizer", "scheduler"),
    [
        ("sgd:momentum=0.9", "cosine:warmup=1:every=step"),
        ("adam", "plateau:patience=0"),
        ("nadam", PerStep(lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=20))),
        ("rmsprop", lambda optimizer: MultiStepLR(optimizer, [1, 2, 2])),
        (lambda p: AdamW(p, 0.01, amsgrad=True), warm_restart),
        (lambda p: torch.optim.LBFGS(p, 0.1, max_iter=2), None),
    ],
    ids=["sgd-cosine", "adam-plateau", "nadam-one-cycle", "rmsprop-multi-step", "adamw-sequential", "lbfgs"],
)
def test_optimiser_and_scheduler_survive_a_resume_bit_for_bit(
    optimizer: Any, scheduler: Any, graph: lmc.Graph, tmp_path: Path
) -> None:
    options = {"optimizer": optimizer, "scheduler": scheduler, "eval_every": 1, "restore_best": False}
    fit(graph, run_dir=tmp_path / "r", steps=2 * STEPS + 1, **options)
    resumed, record = fit(graph, run_dir=tmp_path / "r", resume=True, **options)
    whole, expected = fit(graph, **options)
    assert same(resumed, whole)
    assert [(e.loss, e.scores, e.logged) for e in record.epochs] == [
        (e.loss, e.scores, e.logged) for e in expected.epochs
    ]
    assert "Infinity" not in (tmp_path / "r" / "config.json").read_text()
    assert b"Infinity" not in (tmp_path / "r" / "checkpoint.safetensors").read_bytes()


def test_other_optimisers_and_schedulers_are_not_resumed(graph: lmc.Graph, tmp_path: Path) -> None:
    fit(graph, run_dir=tmp_path / "r", optimizer="sgd", scheduler="cosine", epochs=2)
    for other, message in (
        ({"optimizer": "sgd:momentum=0.9", "scheduler": "cosine", "epochs": 2}, r"optimizer: .*momentum"),
        ({"optimizer": "sgd", "scheduler": "cosine"}, "scheduler: epochs: 2 there, 4 here"),
        ({"optimizer": "sgd"}, "scheduler"),
    ):
        with pytest.raises(CheckpointError, match=message):
            fit(graph, run_dir=tmp_path / "r", resume=True, **other)
    fit(graph, run_dir=tmp_path / "r", resume=True, optimizer="sgd", scheduler="cosine:epochs=2")


def test_the_named_metric_and_its_direction_choose_the_best_epoch(graph: lmc.Graph) -> None:
    model = model_of(graph)
    _, record = fit(graph, model=model, epochs=8, eval_every=1, lr=0.1, metrics={"wrong": ("accuracy", "min")})
    scores = [(epoch.scores or {})["val"] for epoch in record.epochs]
    assert record.best_epoch == scores.index(min(scores)) + 1
    assert scores[0] != min(scores) or scores[-1] != min(scores)
    assert record.best is not None
    assert record.best.scores is not None
    assert record.best.scores["val_wrong"] == min(scores) == lmc.evaluate(model, graph)["val"]
    assert (record.config["metrics"], record.config["direction"]) == (["wrong"], "min")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "adm"}, r"optimizer of adam, .* \(got 'adm'\): did you mean adam\?"),
        ({"optimizer": "adam:beta=0.9"}, r"option of optimizer 'adam' \(got 'beta' .* did you mean betas"),
        ({"optimizer": "adam:betas=0.9"}, "torch accepts"),
        ({"optimizer": "sgd:nesterov=yes"}, "torch accepts .*Nesterov"),
        ({"optimizer": "adam:lr=0.1", "lr": 0.2}, "lr once"),
        ({"optimizer": "adamw:weight_decay=0.1", "weight_decay": 0.2}, "weight_decay once"),
        ({"optimizer": SGD, "lr": 0.2}, r"in the optimizer alone \(got lr=0.2"),
        ({"optimizer": SGD, "weight_decay": 0.0}, r"in the optimizer alone \(got weight_decay=0.0"),
        ({"optimizer": lambda p: None}, r"factory to return a torch optimizer \(got NoneType"),
        ({"optimizer": lambda p: SGD(p[1:])}, r"parameters of this model \(got one without layers.0"),
        ({"optimizer": lambda p: SGD([*p, torch.zeros(1)])}, "with 1 parameters of something else"),
        ({"optimizer": 3}, "optimizer to be"),
        ({"optimizer": lambda: None}, r"optimizer as a function of the parameters alone \(got <lambda>: too many "),
        ({"optimizer": Optimizer}, r"\(got Optimizer: missing a required argument: 'defaults'\): write e.g. lambda"),
        ({"scheduler": StepLR}, r"function of the optimizer alone \(got StepLR: .*'step_size'\): write e.g. lambda"),
        ({"scheduler": PerStep(OneCycleLR)}, r"function of the optimizer alone \(got OneCycleLR: .*'max_lr'"),
        ({"scheduler": PerStep(3)}, r"function of the optimizer alone \(got int: 3 is not a callable object\)"),
        ({"optimizer": "adamx"}, "expected an optimizer of adam, .* did you mean adam"),
        ({"scheduler": "cos"}, r"expected a scheduler of cosine, step, plateau, constant \(got 'cos'\)"),
        ({"scheduler": "cosine:warm=3"}, "did you mean warmup"),
        ({"scheduler": "cosine:warmup=-1"}, "warmup of at least 0"),
        ({"scheduler": "plateau:factor=2", "eval_every": 1}, "factor between 0 and 1"),
        ({"scheduler": lambda optimizer: optimizer}, r"factory to return a scheduler .* \(got Adam"),
        ({"scheduler": StepLR(SGD([torch.zeros(1)]), 1)}, "scheduler of the optimizer that trains"),
        ({"scheduler": lambda optimizer: ReduceLROnPlateau(optimizer), "eval_every": 1}, "mode='max' .*mode='min'"),
        ({"scheduler": PerStep(lambda o: ReduceLROnPlateau(o, "max")), "eval_every": 1}, "got PerStep"),
        ({"scheduler": 3}, "scheduler to be"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(options: dict[str, Any], message: str, graph: lmc.Graph) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        fit(graph, **options)
    assert "\n" not in str(error.value)


def test_a_factory_that_cannot_be_called_is_refused_before_the_graph_is_bound() -> None:
    for options in ({"scheduler": StepLR}, {"optimizer": Optimizer}):
        with pytest.raises(ConfigError, match="alone"):
            Settings(**options)


@pytest.mark.parametrize(("names", "options_of"), [(OPTIMIZERS, optimizer_options), (SCHEDULERS, scheduler_options)])
def test_every_option_has_a_readable_type(names: dict[str, Any], options_of: Callable[[str], list[Any]]) -> None:
    for name in names:
        assert all(option.expected for option in options_of(name))
