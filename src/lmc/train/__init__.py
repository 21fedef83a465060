"""Counting epochs: the loop, exact evaluation, checkpoints."""

from lmc.train.evaluate import evaluate
from lmc.train.interrupt import stop_on_interrupt
from lmc.train.loop import Settings, config_of, fit, train, train_epoch, train_step
from lmc.train.optimiser import adam

__all__ = [
    "Settings",
    "adam",
    "config_of",
    "evaluate",
    "fit",
    "stop_on_interrupt",
    "train",
    "train_epoch",
    "train_step",
]
