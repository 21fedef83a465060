"""Optimisers and learning rates: by name as on the command line, from a factory, or as finished objects."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from lmc.errors import ConfigError, check_at_least
from lmc.grammar import Option, named, options_of, read_options, split_spec

OptimizerFactory = Callable[[list[nn.Parameter]], Optimizer]
SchedulerFactory = Callable[[Optimizer], LRScheduler]
OPTIMIZERS: dict[str, type[Optimizer]] = {
    name.lower(): getattr(torch.optim, name)
    for name in ("Adam", "AdamW", "SGD", "RMSprop", "NAdam", "RAdam", "Adagrad")
}
_INTERNAL = ("self", "params", "foreach", "maximize", "capturable", "differentiable", "fused")
LR = 0.01
"""The learning rate where none is given."""


@dataclass(frozen=True)
class PerStep:
    """A scheduler, or a factory of one, that advances after every step instead of every epoch."""

    scheduler: LRScheduler | SchedulerFactory


@dataclass(frozen=True)
class Curve:
    """A constant learning rate, after a linear warm-up.

    Args:
        warmup: epochs in which the factor rises linearly to 1.
        every: when the learning rate changes: after every epoch or after every step.
    """

    warmup: float = 0.0
    every: Literal["epoch", "step"] = "epoch"

    def __post_init__(self) -> None:
        check_at_least(0, **{name: value for name, value in vars(self).items() if isinstance(value, int | float)})

    def factor(self, t: float) -> float:
        """The factor ``t`` epochs after the warm-up."""
        return 1.0

    def at(self, t: float, interval: float) -> float:
        """The factor after ``t`` epochs; the learning rate is constant for ``interval`` epochs."""
        if t < self.warmup:
            return min(1.0, (t + interval) / self.warmup)
        return self.factor(t - self.warmup)


@dataclass(frozen=True)
class Cosine(Curve):
    """Half a period of the cosine, from 1 to ``floor``: floor + (1 - floor) (1 + cos(pi t / T)) / 2.

    Args:
        epochs: the epoch at which it ends, warm-up included; none: the last epoch of the run.
        floor: the factor at the end.
    """

    epochs: int | None = None
    floor: float = 0.0

    def factor(self, t: float) -> float:
        length = max((self.epochs or 0) - self.warmup, 1e-9)
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * min(1.0, t / length))) / 2


@dataclass(frozen=True)
class Step(Curve):
    """Multiply by ``gamma`` after every ``size`` epochs.

    Args:
        size: epochs between two changes.
        gamma: the factor of one change.
    """

    size: int = 30
    gamma: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, size=self.size)

    def factor(self, t: float) -> float:
        return float(self.gamma ** (t // self.size))


@dataclass(frozen=True)
class Plateau:
    """Multiply by ``factor`` when the validation score has not improved for ``patience`` evaluations.

    Args:
        factor: less than 1.
        patience: evaluations without improvement.
        floor: the smallest learning rate.
    """

    factor: float = 0.5
    patience: int = 10
    floor: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.factor < 1 or self.patience < 0 or not 0 <= self.floor < math.inf:
            raise ConfigError(
                f"expected a factor between 0 and 1, and patience and floor of at least 0 (got {self}): change it"
            )


SCHEDULERS: dict[str, type[Curve | Plateau]] = {"cosine": Cosine, "step": Step, "plateau": Plateau, "constant": Curve}


def adam(model: nn.Module, lr: float, weight_decay: float = 0.0) -> torch.optim.Adam:
    """Adam over the parameters of ``model``; on a GPU its update is one kernel."""
    fused = all(p.is_cuda for p in model.parameters())
    return torch.optim.Adam(model.parameters(), lr=lr, weight_decay=weight_decay, fused=fused)


def optimizer_options(name: str) -> list[Option]:
    """The options of an optimiser: the arguments of its class, without those of the implementation."""
    kind = named(name, OPTIMIZERS, "optimizer")
    arguments = inspect.signature(kind.__init__).parameters
    return options_of(kind.__init__, {k: p.default for k, p in arguments.items() if k not in _INTERNAL}, ())


def scheduler_options(name: str) -> list[Option]:
    """The options of a scheduler: the fields of its record."""
    kind = named(name, SCHEDULERS, "scheduler")
    return options_of(kind, {f.name: f.default for f in dataclasses.fields(kind)}, kind.__mro__)


def read_optimizer(text: str) -> tuple[type[Optimizer], dict[str, Any]]:
    """The class and the arguments of a spec such as ``adamw:weight_decay=5e-4``."""
    name, written = split_spec(text)
    options = optimizer_options(name)
    return OPTIMIZERS[name], read_options("optimizer", name, written, options, text)


def read_scheduler(text: str) -> Curve | Plateau:
    """The scheduler of a spec such as ``cosine:warmup=5``."""
    name, written = split_spec(text)
    options = scheduler_options(name)
    return SCHEDULERS[name](**read_options("scheduler", name, written, options, text))


def check_factories(
    optimizer: str | Optimizer | OptimizerFactory | None,
    scheduler: str | LRScheduler | SchedulerFactory | PerStep | None,
) -> None:
    """Refuse a factory that cannot be called as training calls it, such as a class that needs more arguments."""
    inner = scheduler.scheduler if isinstance(scheduler, PerStep) else scheduler
    if not isinstance(optimizer, str | Optimizer | None):
        _check_call(optimizer, "optimizer", "parameters", "lambda parameters: torch.optim.SGD(parameters, lr=0.1)")
    if not isinstance(inner, str | LRScheduler | None):
        _check_call(inner, "scheduler", "optimizer", "lambda optimizer: StepLR(optimizer, 30)")


def _check_call(factory: Callable[[Any], object], kind: str, argument: str, example: str) -> None:
    """Refuse a factory that does not take one argument."""
    try:
        inspect.signature(factory).bind(None)
    except TypeError as error:
        got = f"{getattr(factory, '__name__', type(factory).__name__)}: {error}"
        raise ConfigError(
            f"expected the {kind} as a function of the {argument} alone (got {got}): write e.g. {example}"
        ) from error
    except ValueError:  # a callable of C without a signature
        return


def make_optimizer(
    given: str | Optimizer | OptimizerFactory | None, model: nn.Module, lr: float, weight_decay: float | None
) -> Optimizer:
    """The optimiser that ``fit`` was given, checked to train the parameters of ``model``.

    Args:
        given: None for Adam; a spec, a function from parameters to an optimiser, or an optimiser.
        lr, weight_decay: of Adam and of a spec that does not give them; others have their own.
    """
    parameters = list(model.parameters())
    if given is None or isinstance(given, str):
        return _named_optimizer(given or "adam", parameters, lr, weight_decay)
    if lr != LR or weight_decay is not None:
        what = f"lr={lr}" if lr != LR else f"weight_decay={weight_decay}"
        raise ConfigError(f"expected lr and weight_decay in the optimizer alone (got {what} beside it): drop it")
    optimizer = given if isinstance(given, Optimizer) else given(parameters)
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            f"expected the optimizer factory to return a torch optimizer (got {type(optimizer).__name__}): write e.g. "
            "lambda parameters: torch.optim.SGD(parameters, lr=0.1)"
        )
    _check_covers(optimizer, model)
    return optimizer


def _named_optimizer(text: str, parameters: list[nn.Parameter], lr: float, weight_decay: float | None) -> Optimizer:
    kind, arguments = read_optimizer(text)
    for name, value, unset in (("lr", lr, LR), ("weight_decay", weight_decay, None)):
        if name in arguments and value != unset:
            raise ConfigError(f"expected {name} once (got {value} and {text!r}): drop one")
        if value is not None:
            arguments.setdefault(name, value)
    if all(p.is_cuda for p in parameters) and "fused" in inspect.signature(kind.__init__).parameters:
        arguments["fused"] = True  # the update is one kernel
    try:
        return kind(parameters, **arguments)
    except (ValueError, TypeError, IndexError) as error:
        raise ConfigError(f"expected options that torch accepts (got {text!r}: {error}): change them") from error


def _check_covers(optimizer: Optimizer, model: nn.Module) -> None:
    """Refuse an optimiser that does not train exactly the parameters of the model."""
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in trained]
    foreign = len(trained - {id(p) for p in model.parameters()})
    if missing or foreign:
        got = f"without {', '.join(missing)}" if missing else f"with {foreign} parameters of something else"
        raise ConfigError(
            f"expected an optimizer of the parameters of this model (got one {got}): build it from "
            "model.parameters(), and freeze others by requires_grad_(False)"
        )


def settings_of(optimizer: Optimizer) -> dict[str, Any]:
    """The class and the settings of an optimiser as plain values; ``lr`` and ``weight_decay`` by themselves."""
    hidden = (*_INTERNAL, "initial_lr")
    groups = []
    for group in optimizer.param_groups:
        values = {k: _plain(v) for k, v in group.items() if k not in hidden}
        groups.append(values | {"lr": _plain(group.get("initial_lr", group["lr"]))})
    own = {name: groups[0].pop(name, None) for name in ("lr", "weight_decay")} if len(groups) == 1 else {}
    rest = groups[0] if len(groups) == 1 else {"groups": groups}
    return own | {"optimizer": {"name": type(optimizer).__name__, **rest}}


class Schedule:
    """A scheduler with the time at which it advances; without a scheduler nothing happens.

    Args:
        scheduler: of torch; None: the learning rate is constant.
        per_step: whether it advances after every step instead of every epoch.
        settings: what the run folder records of it.
    """

    def __init__(self, scheduler: LRScheduler | None, per_step: bool = False, settings: Any = None) -> None:
        self.scheduler, self.per_step, self.settings = scheduler, per_step, settings

    @property
    def reads_score(self) -> bool:
        """Whether it needs validation scores."""
        return isinstance(self.scheduler, ReduceLROnPlateau)

    def after_step(self) -> None:
        """Advance after a step, where the scheduler advances by steps."""
        if self.scheduler is not None and self.per_step:
            self.scheduler.step()

    def after_epoch(self, score: float | None) -> None:
        """Advance after a complete epoch with this validation score; None: it was not evaluated."""
        if isinstance(self.scheduler, ReduceLROnPlateau):
            if score is not None:
                self.scheduler.step(score)
        elif self.scheduler is not None and not self.per_step:
            self.scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        return {} if self.scheduler is None else self.scheduler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.scheduler is not None:
            self.scheduler.load_state_dict(dict(state))


def make_schedule(
    given: str | LRScheduler | SchedulerFactory | PerStep | None, optimizer: Optimizer, *, epochs: int, steps: int,
    direction: Literal["max", "min"],
) -> Schedule:  # fmt: skip
    """The scheduler that ``fit`` was given, for ``optimizer``.

    Args:
        given: None for a constant learning rate; a spec, a function from the optimiser to a scheduler, or a scheduler,
            which advances after every epoch, or in a :class:`PerStep` after every step.
        epochs: of the run.
        steps: in an epoch.
        direction: which values of the validation score are better.
    """
    if given is None:
        return Schedule(None)
    if isinstance(given, str):
        return _named_schedule(given, optimizer, epochs, steps, direction)
    per_step = isinstance(given, PerStep)
    inner = given.scheduler if isinstance(given, PerStep) else given
    scheduler = inner if isinstance(inner, LRScheduler) else inner(optimizer)
    if not isinstance(scheduler, LRScheduler):
        raise ConfigError(
            f"expected the scheduler factory to return a scheduler of torch.optim.lr_scheduler (got "
            f"{type(scheduler).__name__}): write e.g. lambda optimizer: StepLR(optimizer, 30)"
        )
    if scheduler.optimizer is not optimizer:
        raise ConfigError(
            "expected a scheduler of the optimizer that trains (got one of another optimizer): pass its optimizer too, "
            "or a function from the optimizer to a scheduler"
        )
    if isinstance(scheduler, ReduceLROnPlateau) and (per_step or scheduler.mode != direction):
        got = "PerStep" if per_step else f"mode={scheduler.mode!r}"
        raise ConfigError(
            f"expected ReduceLROnPlateau to read the validation score of evaluations, with mode={direction!r} (got "
            f"{got}): change it"
        )
    settings = {"name": type(scheduler).__name__, "per_step": per_step, **_plain(scheduler.state_dict())}
    return Schedule(scheduler, per_step, settings)


def _named_schedule(
    text: str, optimizer: Optimizer, epochs: int, steps: int, direction: Literal["max", "min"]
) -> Schedule:
    curve = read_scheduler(text)
    if isinstance(curve, Cosine) and curve.epochs is None:
        curve = dataclasses.replace(curve, epochs=epochs)
    settings = {"name": split_spec(text)[0], **dataclasses.asdict(curve)}
    if isinstance(curve, Plateau):
        plateau = ReduceLROnPlateau(optimizer, direction, curve.factor, curve.patience, min_lr=curve.floor)
        return Schedule(plateau, settings=settings)
    found, per_step = curve, curve.every == "step"
    interval = 1 / steps if per_step else 1.0
    return Schedule(LambdaLR(optimizer, lambda k: found.at(k * interval, interval)), per_step, settings)


def _plain(value: Any) -> Any:
    """A value that JSON can contain; what it cannot becomes a text."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(v) for v in value]
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else type(value).__name__
