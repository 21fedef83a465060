"""``python -m experiments``: one command for each study."""

import typer

from lmc.cli.app import prepare_process

PROGRAM = "python -m experiments"


def make_app() -> typer.Typer:
    """The commands, by the names of the studies."""
    from experiments.accuracy import Accuracy
    from experiments.bandwidth import Bandwidth
    from experiments.bias import Bias
    from experiments.choose import Choose
    from experiments.drawing import draw_idea
    from experiments.estimates import estimates
    from experiments.gradients import Gradients
    from experiments.grid import Grid
    from experiments.literal import Literal
    from experiments.paper.commands import make_paper_app
    from experiments.plan import Plan, plan
    from experiments.ranks import RankCurves
    from experiments.recurrent import Recurrent
    from experiments.sampling import Sampling
    from experiments.staleness import StalenessStudy
    from experiments.theorems import Theorems
    from lmc.cli.options import takes
    from lmc.cli.study import app_of

    app = app_of(
        [
            Grid,
            Gradients,
            Bias,
            Accuracy,
            Choose,
            Recurrent,
            Literal,
            Sampling,
            Bandwidth,
            StalenessStudy,
            Theorems,
            RankCurves,
        ],
        PROGRAM,
        "Studies that compare training methods.",
    )
    app.command("estimates")(estimates)
    app.command("drawing")(draw_idea)
    app.command("plan")(takes(Plan)(plan))
    app.add_typer(make_paper_app(PROGRAM), name="paper")
    return app


if __name__ == "__main__":
    prepare_process()
    make_app()(prog_name=PROGRAM)
