"""The campaigns of faults and bad inputs: kills, faults, damage, generated inputs, misuse and a soak test.

    python tests/campaigns/campaign.py                    run all but ranks (part of ``make campaign``)
    python tests/campaigns/campaign.py --only damage      run one of them
    python tests/campaigns/campaign.py --only ranks       faults of distributed runs
    python tests/campaigns/campaign.py --share 0.02       run a fixed share of the cases, in this process

Every case is a function of its number, so that a wrong one can be run again: ``--only kills --case 17``. The outcome of
a case is right, refused in one line, or wrong. The table is written to ``docs/reliability.txt`` with ``--write``. The
exit code is 1 if any outcome is wrong.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

# the cases are small, and forked processes must not inherit threads that they cannot use
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

GROUPS = ("soak", "kills", "faults", "damage", "inputs", "misuse", "tables")
RANKS = "ranks"
"""The campaign of distributed runs: it starts several processes per case, and runs on its own."""
TABLE = ROOT / "docs" / "reliability.txt"
BLOCK_LIMIT = 1800
"""Seconds after which a process of many cases is ended."""


def main() -> int:
    """Run the campaigns, print the table and what was wrong."""
    arguments = _arguments()
    groups = [arguments.only] if arguments.only else list(GROUPS)
    began = time.monotonic()
    if arguments.case is not None or arguments.share < 1:
        tallies = {group: _here(group, arguments.share, arguments.case) for group in groups}
    else:
        tallies = _in_processes(groups, arguments.workers)
    if arguments.json:
        sys.stdout.write(json.dumps(tallies) + "\n")
    else:
        table = as_table(tallies, time.monotonic() - began)
        sys.stdout.write(table)
        if arguments.write:
            TABLE.write_text(table)
        for group, tally in tallies.items():
            sys.stdout.writelines(f"WRONG {group}: {line}\n" for line in tally["wrong"])
    return int(any(tally["wrong"] for tally in tallies.values()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=(*GROUPS, RANKS))
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--case", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON")
    parser.add_argument("--write", action="store_true", help="write the table to the documentation")
    parser.add_argument("--block", nargs=3, metavar=("GROUP", "START", "STOP"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.block:
        group, start, stop = arguments.block
        sys.stdout.write(json.dumps(_run(group, range(int(start), int(stop)))) + "\n")
        raise SystemExit(0)
    return arguments


def _run(group: str, numbers: Iterable[int]) -> dict:
    """The outcomes of some cases, in this process."""
    import tempfile

    import torch

    from campaigns.harness import Tally

    torch.set_num_threads(1)
    module, tally = importlib.import_module(f"campaigns.{group}"), Tally()
    with tempfile.TemporaryDirectory(prefix="lmc-campaign-cache-") as cache:
        os.environ["XDG_CACHE_HOME"] = cache  # partitions made here do not end in the user's cache
        for number in numbers:
            module.run(number, tally)
    return asdict(tally)


def _here(group: str, share: float, case: int | None) -> dict:
    """The outcomes of one case, or of a fixed share of the cases of a group, at least five."""
    if case is not None:
        return _run(group, [case])
    if group == "soak":  # its cases are equal and long; a short one is part of the tests
        return _run_short_soak()
    cases = _sizes(group)[0]
    return _run(group, sorted(random.Random(group).sample(range(cases), max(5, round(share * cases)))))


def _run_short_soak() -> dict:
    from campaigns import soak
    from campaigns.harness import Tally

    tally = Tally()
    soak.soak(soak.RUNS[1], 150, tally)
    return asdict(tally)


def _sizes(group: str) -> tuple[int, int]:
    """The number of cases of a group, and how many run in one process."""
    module = importlib.import_module(f"campaigns.{group}")
    return module.count() if hasattr(module, "count") else module.CASES, module.PER_BLOCK


def _in_processes(groups: list[str], workers: int) -> dict[str, dict]:
    """Run blocks of cases in processes of their own; one that dies counts as wrong."""
    from campaigns.harness import Tally

    blocks = []
    for group in groups:
        cases, size = _sizes(group)
        blocks += [(group, start, min(cases, start + size)) for start in range(0, cases, size)]
    tallies = {group: Tally() for group in groups}
    with ThreadPoolExecutor(workers) as pool:
        for (group, *_), outcomes in zip(blocks, pool.map(_in_process, blocks), strict=True):
            tallies[group].add(Tally(**outcomes))
    return {group: asdict(tally) for group, tally in tallies.items()}


def _in_process(block: tuple[str, int, int]) -> dict:
    command = [sys.executable, __file__, "--block", *map(str, block)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=BLOCK_LIMIT, check=False)
        if ended.returncode == 0:
            sys.stderr.write(f"{block[0]} {block[1]} to {block[2]}\n")
            return json.loads(ended.stdout.splitlines()[-1])
        said, how = ended.stderr, f"the process ended with code {ended.returncode}"
    except subprocess.TimeoutExpired as error:
        said, how = (error.stderr or b"").decode(), f"the process did not end within {BLOCK_LIMIT} s"
    cases = [line for line in said.splitlines() if line.startswith("case: ")]
    return {"tried": len(cases), "right": 0, "refused": 0, "wrong": [f"{how} at {cases[-1:]}: {said[-400:]}"]}


def as_table(tallies: dict[str, dict], seconds: float) -> str:
    """The outcomes as a table of text."""
    rows = [("", "tried", "right", "refused in one line", "wrong")]
    for group, tally in tallies.items():
        title = importlib.import_module(f"campaigns.{group}").TITLE
        figures = (tally["tried"], tally["right"], tally["refused"], len(tally["wrong"]))
        rows.append((title, *[f"{figure:,}" for figure in figures]))
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    return "\n".join(lines) + f"\n\n{seconds / 60:.0f} minutes\n"


if __name__ == "__main__":
    sys.exit(main())
