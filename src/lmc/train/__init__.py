"""Training: the loop, exact evaluation and checkpoints."""

from lmc.train.callbacks import Callback
from lmc.train.evaluate import evaluate
from lmc.train.fit import fit
from lmc.train.loop import Training, train, train_epoch, train_step
from lmc.train.optimizers import PerStep, adam
from lmc.train.predict import predict
from lmc.train.run_folder import Settings, config_of
from lmc.train.runs import load_run
from lmc.train.signals import stop_on_interrupt
