"""``lmc bench``: what training costs on this machine."""

from __future__ import annotations

import typer

from lmc.cli.console import OneLineErrors
from lmc.cli.memory import Memory
from lmc.cli.scale import Scale
from lmc.cli.speed import Speed
from lmc.cli.study import Study, command_of

bench_app = typer.Typer(
    cls=OneLineErrors,
    help="Measure speed and memory on this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
STUDIES: tuple[type[Study], ...] = (Speed, Memory, Scale)
for _study in STUDIES:
    bench_app.command(_study.name)(command_of(_study))
