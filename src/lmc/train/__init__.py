"""Training: the loop, exact evaluation and checkpoints."""

from lmc.train.evaluate import evaluate
from lmc.train.fit import fit
from lmc.train.interrupt import stop_on_interrupt
from lmc.train.loop import train, train_epoch, train_step
from lmc.train.optimiser import adam
from lmc.train.run_folder import config_of
from lmc.train.settings import Settings
