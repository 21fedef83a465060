"""``python -m experiments``: one command for each study."""

import os

import typer

from lmc.cli.app import ENVIRONMENT
from lmc.heap import keep_memory

for _name, _value in ENVIRONMENT.items():  # before torch is imported
    os.environ.setdefault(_name, _value)


def make_app() -> typer.Typer:
    """The commands, by the names of the studies."""
    from experiments.accuracy import Accuracy
    from experiments.estimates import estimates
    from experiments.gradients import Gradients
    from experiments.grid import Grid
    from experiments.recurrent import Recurrent
    from experiments.sampling import Sampling
    from lmc.cli.console import OneLineErrors
    from lmc.cli.study import Study, command_of

    app = typer.Typer(
        name="experiments",
        cls=OneLineErrors,
        help="Studies that compare training methods.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    studies: tuple[type[Study], ...] = (Grid, Gradients, Accuracy, Recurrent, Sampling)
    for study in studies:
        app.command(study.name)(command_of(study, "python -m experiments"))
    app.command("estimates")(estimates)
    return app


if __name__ == "__main__":
    keep_memory()
    make_app()(prog_name="python -m experiments")
