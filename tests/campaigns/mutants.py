"""Mutants: one-line faults in the rules of the library, each of which a test has to find.

Every mutant replaces one short text in a copy of ``src/`` and runs the test files that should catch it. It is killed
if a test fails and survives if all pass. A rule whose mutant survives is not tested.

    python tests/campaigns/mutants.py                  run all (about 20 minutes; ``make mutants`` does the same)
    python tests/campaigns/mutants.py --only cmc       run those whose name or file contains a text
    python tests/campaigns/mutants.py --resume         continue a run that was stopped
    python tests/campaigns/mutants.py --check          verify that every old text occurs exactly once, and run nothing

Results are appended to ``runs/mutants.jsonl`` as they come. The exit code is 1 if less than 95 % are killed, and 2 if a
mutant is stale or the tests fail without one.

Some changes look like faults and are not; no mutant makes them, because no test can find them:

- GAS, GraphFM and LMC4Conv pull the halo before they push the core. The two sets of rows are disjoint, so the order
  does not change what is read. It matters for the speed of slower tiers alone.
- GAS with P^T on core and halo rows where P^T on the core is enough: the adjoint of a halo row ends at its history.
- GraphSAINT's edges drawn in proportion to 1 / deg(u) alone: both directions of an edge are entries of the adjacency,
  and the sum of their chances is the same.
- The starting value of a solver: the fixed point is unique, so only the number of iterations changes.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
RESULTS = ROOT / "runs" / "mutants.jsonl"
REQUIRED = 0.95
"""The share of mutants that has to be killed."""
TIMEOUT = 600
"""Seconds after which the tests of a mutant count as failed: a fault may keep a loop from ending."""

CMC = ("reference/test_reference_cmc.py", "identities/test_cmc.py")
IMC = ("reference/test_reference_imc.py", "methods/test_imc.py", "pyg/test_autocast.py", "kernels/test_products.py")
LMC = ("reference/test_reference_lmc4conv.py",)
GAS = ("reference/test_reference_gas.py",)
VR_GCN = ("reference/test_reference_vr_gcn.py", "methods/test_sampled.py")
SAINT = ("reference/test_reference_graph_saint.py", "methods/test_sampled.py", "conformance/test_unbiased.py")
RECURRENT = ("reference/test_reference_recurrent.py", "identities/test_fixed_points.py")
SAMPLED = ("methods/test_sampled.py", "conformance/test_unbiased.py")
EDGES = (
    "graph/test_normalise.py",
    "identities/test_weights_and_directions.py",
    "reference/test_reference_lmc4conv.py",
)
LOSSES = ("conformance/test_other_losses.py",)
FILES = ("train/test_run_files.py",)
DRAWS = ("sampling/test_draws.py", "sampling/test_neighbours.py", "conformance/test_unbiased.py")
ROWS = ("models/test_rows.py", "reference/test_reference_lmc4conv.py")
LAYER, STEP, TRAINING = (
    ("distributed/test_layer.py",),
    ("distributed/test_step.py",),
    ("distributed/test_training.py",),
)
BATCH_NORM = ("models/test_batch_norm.py", "reference/test_reference_lmc4conv.py")


@dataclass(frozen=True)
class Mutant:
    """A fault.

    Args:
        name: what the table calls it; unique.
        file: the file it changes, under ``src/lmc``.
        old: the text that is replaced; it occurs exactly once in the file.
        new: the text that replaces it.
        breaks: the rule that no longer holds.
        tests: the test files that should catch it, under ``tests``.
    """

    name: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        """A number that changes with the mutant, so that a resumed run does not keep the result of another."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    def applied(self, source: Path) -> str:
        """The text of the changed file."""
        return (source / "lmc" / self.file).read_text().replace(self.old, self.new)


MUTANTS = (
    # CMC
    Mutant(
        "cmc-part-not-squared",
        "methods/cmc.py",
        "completeness(P, halo)).square()",
        "completeness(P, halo))",
        "the part of a halo row's message that comes from the tables is (1 - x)^2",
        CMC,
    ),
    Mutant(
        "cmc-r2-without-drift",
        "methods/cmc.py",
        "a * T_core",
        "T_core.to(dtype)",
        "R2 compares fresh rows with stored ones after the drift is undone",
        CMC,
    ),
    Mutant(
        "cmc-drift-of-the-core",
        "methods/cmc.py",
        "drift(sampled(clean[halo]).to(dtype), T_halo.to(dtype) * sampled(real[halo]))",
        "drift(sampled(clean[core]).to(dtype), T_core.to(dtype) * sampled(real[core]))",
        "the drift is fitted on halo rows",
        CMC,
    ),
    Mutant(
        "cmc-trust-of-the-layer-below",
        "methods/cmc.py",
        'step.numbers["R2"][l],',
        'step.numbers["R2"][l - 1],',
        "the trust of a layer is measured on its own messages",
        CMC,
    ),
    Mutant(
        "cmc-drift-not-clipped",
        "methods/cmc.py",
        ".clamp(0, 2)",
        "",
        "the drift is in [0, 2]",
        CMC,
    ),
    Mutant(
        "cmc-trust-without-the-mean",
        "methods/cmc.py",
        "torch.minimum(R2[place], R2.mean())",
        "R2[place]",
        "the trust takes the lesser of this batch's R2 and the mean over all batches",
        CMC,
    ),
    Mutant(
        "cmc-sums-of-the-halo-not-updated",
        "methods/cmc.py",
        "self.M.add(batch.halo, A[c:])",
        "pass",
        "M = P T holds at all times, so what the core changes is added to the halo's sums too",
        CMC,
    ),
    Mutant(
        "cmc-keeps-dropped-rows",
        "methods/cmc.py",
        "self.T.push(batch.rows, clean[:c])",
        "self.T.push(batch.rows, t[:c])",
        "the tables hold rows before dropout",
        CMC,
    ),
    Mutant(
        "cmc-drift-under-batch-norm",
        "methods/cmc.py",
        "not normalised_by_batch(step.problem.model))",
        "True)",
        "no drift is fitted under batch norm",
        CMC,
    ),
    Mutant(
        "cmc-part-under-batch-norm",
        "methods/cmc.py",
        "part * (num_halo.to(part.dtype) / num_core / LARGE_HALO).clamp(max=1)",
        "part",
        "under batch norm R2 counts less where the halo is small",
        CMC,
    ),
    Mutant(
        "cmc-narrow-gradient-without-the-halo-columns",
        "methods/cmc.py",
        "outer(q_core, delta)",
        "outer(q_core[:c], delta[:c])",
        "dW = v_core^T m_core reads the messages of the halo too",
        CMC,
    ),
    Mutant(
        "cmc-edges-of-the-epoch-before",
        "methods/cmc.py",
        "for sums in self.traits.sums:",
        "for sums in ():",
        "M = P T holds with the edges of the epoch",
        ("identities/test_cmc.py",),
    ),
    # LMC4Conv and its compensation
    Mutant(
        "lmc-score-ignored",
        "methods/lmc4conv.py",
        "SCORES[self.score](",
        'SCORES["1"](',
        "beta is alpha times the score of deg_local / deg_global",
        LMC,
    ),
    Mutant(
        "lmc-alpha-ignored", "methods/lmc4conv.py", "beta = self.alpha * ", "beta = ", "beta has the factor alpha", LMC
    ),
    Mutant(
        "lmc-score-sine",
        "methods/lmc4conv.py",
        '"sin": torch.sin',
        '"sin": torch.sinh',
        "the score sin is the sine of the share of neighbours that are present",
        LMC,
    ),
    Mutant(
        "completeness-counts-the-loop",
        "engine/problem.py",
        "[P.num_rows - halo.numel() :] - 1",
        "[P.num_rows - halo.numel() :]",
        "deg_local does not count the node itself",
        LMC,
    ),
    Mutant(
        "halo-without-the-nodes-that-read-the-core",
        "engine/problem.py",
        "self.blocks.halo(core, both=self.graph.directed)",
        "self.blocks.halo(core)",
        "on a directed graph the halo is the union of in- and out-neighbours",
        EDGES,
    ),
    Mutant(
        "completeness-of-in-neighbours-alone",
        "engine/problem.py",
        "deg_local = deg_local + P.t().degrees()[first:] - 1",
        "deg_local = 2 * deg_local",
        "on a directed graph deg_local counts the edges of both directions",
        EDGES,
    ),
    Mutant(
        "weights-not-normalised",
        "graph/normalise.py",
        "else row_sums(looped, looped.values)",
        "else looped.degrees().double()",
        "D sums the edge weights",
        EDGES,
    ),
    Mutant(
        "lmc4rec-adjoints-along-p",
        "methods/lmc4rec.py",
        "P if problem.transposed is problem.blocks else problem.transposed.block(core, ext)",
        "P",
        "adjoints are summed with P^T",
        EDGES,
    ),
    Mutant(
        "lmc-forward-mixed-the-wrong-way-round",
        "methods/compensation.py",
        "_mix(H_halo, s[num_core:],",
        "_mix(s[num_core:].clone(), H_halo,",
        "(13): the history has the weight 1 - beta",
        LMC,
    ),
    Mutant(
        "lmc-backward-mixed-the-wrong-way-round",
        "methods/compensation.py",
        "_mix(V_halo, v[c:],",
        "_mix(v[c:], V_halo,",
        "(16): the history has the weight 1 - beta",
        LMC,
    ),
    Mutant(
        "lmc-beta-twice",
        "methods/compensation.py",
        "out=V_hat[c:])",
        "out=V_hat[c:]), V_hat[c:].mul_(ctx.beta)",
        "(16) replaces the adjoint; the chain rule of (13) does not multiply it by beta again",
        LMC,
    ),
    Mutant(
        "lmc-halo-adjoints-not-replaced",
        "methods/compensation.py",
        "if V_halo is None:",
        "if True:",
        "(16): the adjoint of a halo row is mixed with its history",
        LMC,
    ),
    Mutant(
        "lmc-last-layer-not-kept",
        "methods/lmc4conv.py",
        "if l >= first}",
        "if first <= l < L}",
        "H[L] is kept, because the adjoint of a halo row starts from the loss at its last state",
        LMC,
    ),
    Mutant(
        "lmc-adjoints-never-stored",
        "methods/lmc4conv.py",
        "step.V[l].push(batch.rows, v_core)",
        "pass",
        "the adjoints of the core (15) become its history",
        LMC,
    ),
    Mutant(
        "lmc-first-layer-always-complete",
        "methods/lmc4conv.py",
        'precompute=self.first_layer == "complete"',
        "precompute=True",
        'with first_layer="pruned" the messages of layer 1 are not completed by P X',
        LMC,
    ),
    # GAS, GraphFM, Cluster-GCN, backward SGD
    Mutant(
        "gas-never-pushes",
        "methods/gas.py",
        "step.H[l].push(step.batch.rows, s.detach())",
        "pass",
        "the states of the core become its history",
        GAS,
    ),
    Mutant(
        "gas-pulls-the-layer-below",
        "methods/gas.py",
        "step.H[l].pull(",
        "step.H[max(1, l - 1)].pull(",
        "the states of halo rows come from the history of the same layer",
        GAS,
    ),
    Mutant(
        "graphfm-momentum-reversed",
        "methods/graph_fm.py",
        "s[c:].detach(), self.momentum)",
        "s[c:].detach(), 1 - self.momentum)",
        "the momentum is the weight of the new message",
        GAS,
    ),
    Mutant(
        "graphfm-not-written-back",
        "methods/graph_fm.py",
        "step.H[l].push(batch.halo, H_halo)",
        "pass",
        "the momentum step of halo rows is written back to the history",
        GAS,
    ),
    Mutant(
        "graphfm-halo-reads-halo",
        "methods/graph_fm.py",
        "(row < c) | (col < c) | (row == col)",
        "row >= 0",
        "the partial message of a halo row reads the core and itself, not other halo rows",
        GAS,
    ),
    Mutant(
        "graphfm-ib-adjoint-times-momentum",
        "methods/graph_fm_ib.py",
        "s + (mixed - s.detach())",
        "mixed + self.momentum * (s - s.detach())",
        "the adjoint of a mixed row goes to the sampled state whole",
        SAMPLED,
    ),
    Mutant(
        "graphfm-ib-momentum-ignored",
        "methods/graph_fm_ib.py",
        "s.detach(), self.momentum)",
        "s.detach(), 1.0)",
        "a computed row is mixed with its history",
        SAMPLED,
    ),
    Mutant(
        "cluster-gcn-not-renormalised",
        "methods/cluster_gcn.py",
        "problem.renormalise(problem.blocks.induced(core))",
        "problem.blocks.induced(core)",
        "the adjacency is renormalised inside of the batch",
        ("identities/test_exactness.py", "methods/test_settings.py", "conformance/test_conformance.py"),
    ),
    Mutant(
        "backward-sgd-statistics-of-the-core",
        "methods/backward_sgd.py",
        'batch_norm="pooled"',
        'batch_norm="core"',
        "the batch statistics of backward SGD are those of the whole graph",
        ("identities/test_exactness.py", "conformance/test_conformance.py", "conformance/test_unbiased.py"),
    ),
    # VR-GCN
    Mutant(
        "vrgcn-history-not-subtracted",
        "methods/vr_gcn.py",
        "self.P(mean - self.T.pull(self.rows))",
        "self.P(mean)",
        "sampled neighbours carry what has changed since their history was written",
        VR_GCN,
    ),
    Mutant(
        "vrgcn-history-not-added",
        "methods/vr_gcn.py",
        "self.T.pull(self.rows)) + history",
        "self.T.pull(self.rows))",
        "P T of all neighbours is added to the sampled differences",
        VR_GCN,
    ),
    Mutant(
        "vrgcn-noise-not-damped",
        "methods/vr_gcn.py",
        "self.damp * self(t)",
        "self(t)",
        "what dropout adds is sampled with the factor sqrt(d / k)",
        VR_GCN,
    ),
    Mutant(
        "vrgcn-keeps-dropped-rows",
        "methods/vr_gcn.py",
        "self.T.push(self.rows, mean.detach())",
        "self.T.push(self.rows, t.detach())",
        "the histories hold rows before dropout",
        VR_GCN,
    ),
    # Sampling methods
    Mutant(
        "graphsage-without-d-over-k",
        "sampling/neighbours.py",
        ".clamp_(min=1).to(self.P.dtype)",
        ".clamp_(1, 1).to(self.P.dtype)",
        "k of d neighbours are weighted by d / k",
        DRAWS,
    ),
    Mutant(
        "graphsage-weights-the-diagonal",
        "sampling/neighbours.py",
        "factor[:, 0] = 1.0",
        "factor[:, 0] *= 1.0",
        "the diagonal is always kept, so it has the weight 1",
        DRAWS,
    ),
    Mutant(
        "importance-of-repeated-draws",
        "sampling/importance.py",
        "weights = times * ",
        "weights = times.clamp(max=1) * ",
        "a node counts as often as it was drawn",
        DRAWS,
    ),
    Mutant(
        "importance-not-normalised",
        "sampling/importance.py",
        "(chances.sum() / size)",
        "(1 / size)",
        "q is normalised to a sum of 1",
        DRAWS,
    ),
    Mutant(
        "importance-not-squared",
        "sampling/importance.py",
        "P.data.square().where(",
        "P.data.where(",
        "q_u is in proportion to |P[:, u]|^2",
        ("sampling/test_draws.py", "methods/test_sampled.py"),
    ),
    Mutant(
        "ladies-samples-from-all-nodes",
        "methods/ladies.py",
        "source.prepared.of(entries)",
        "source.prepared.of()",
        "LADIES samples from the neighbours of the layer above",
        ("methods/test_sampled.py",),
    ),
    Mutant(
        "ladies-not-normalised",
        "methods/ladies.py",
        "if not self.normalise:",
        "if True:",
        "sampled rows are scaled to the sums of the rows of P",
        ("methods/test_sampled.py",),
    ),
    Mutant(
        "ladies-normalises-with-the-diagonal",
        "methods/ladies.py",
        "matrix.data.where(others, 0)",
        "matrix.data",
        "the diagonal is not sampled, so it is not in the sum that is scaled",
        ("methods/test_sampled.py",),
    ),
    Mutant(
        "layer-wise-weighs-the-diagonal",
        "methods/layer_wise.py",
        "weights[columns].where(~diagonal, 1)",
        "weights[columns]",
        "the diagonal is not sampled and counts as it is",
        ("methods/test_sampled.py",),
    ),
    Mutant(
        "sampled-first-layer-always-complete",
        "methods/seeded.py",
        'precompute=self.first_layer == "complete"',
        "precompute=True",
        'with first_layer="sampled" layer 1 is sampled like the others',
        SAMPLED,
    ),
    Mutant(
        "fanouts-in-reverse",
        "methods/seeded.py",
        "self.fanouts[hop - 1]",
        "self.fanouts[-hop]",
        "the first of several fan-outs is that of the seeds",
        SAMPLED,
    ),
    Mutant(
        "graphsaint-without-alpha",
        "methods/graph_saint.py",
        "P.data * over_alpha",
        "P.data",
        "messages are divided by alpha, the chance of u given v",
        SAINT,
    ),
    Mutant(
        "graphsaint-alpha-transposed",
        "methods/graph_saint.py",
        "C_v[P.row_index()]",
        "C_v[P.indices]",
        "alpha_uv is the chance of u given v, not of v given u",
        SAINT,
    ),
    Mutant(
        "graphsaint-without-lambda",
        "methods/graph_saint.py",
        "prepared.importance[nodes])",
        "None)",
        "losses are divided by lambda, the chance of their node",
        ("reference/test_reference_graph_saint.py",),
    ),
    Mutant(
        "graphsaint-biased-inverse",
        "methods/graph_saint.py",
        "return (trials + 1) / (times + 1)",
        "return trials / times.clamp(min=1)",
        "one over a chance is estimated without bias",
        SAINT,
    ),
    Mutant(
        "graphsaint-edges-by-the-product",
        "sampling/importance.py",
        "into[self._row] + out[adj.indices]",
        "into[self._row] * out[adj.indices]",
        "an edge is drawn in proportion to 1 / deg(u) + 1 / deg(v)",
        ("sampling/test_draws.py", *SAINT),
    ),
    Mutant(
        "shadow-not-renormalised",
        "methods/shadow.py",
        'if self.normalise == "subgraph" else',
        "if False else",
        "P is renormalised inside each subgraph",
        ("methods/test_sampled.py",),
    ),
    Mutant(
        "dropedge-same-graph-in-every-epoch",
        "methods/drop_edge.py",
        '"edges", epoch)',
        '"edges")',
        "edges are drawn anew in every epoch",
        SAMPLED,
    ),
    Mutant(
        "dropedge-one-direction",
        "sampling/importance.py",
        "= kept, kept",
        "= kept, kept.flip(0)",
        "both directions of an edge are removed together",
        ("sampling/test_draws.py", *SAMPLED),
    ),
    Mutant(
        "sign-every-hop-is-the-first",
        "methods/sign.py",
        "problem.inputs if not hops else hops[-1].pull",
        "problem.inputs",
        "hop r is P times hop r - 1",
        ("methods/test_sampled.py", "models/test_sign.py"),
    ),
    # Seeds
    Mutant(
        "clusters-same-order-in-every-epoch",
        "sampling/clusters.py",
        '"epoch", number)',
        '"epoch")',
        "batches come in another order in every epoch",
        ("sampling/test_clusters.py", "engine/test_batches.py"),
    ),
    Mutant(
        "seeds-same-in-every-epoch",
        "methods/seeded.py",
        '"seeds", epoch)',
        '"seeds")',
        "the training nodes are shuffled anew in every epoch",
        ("methods/test_sampled.py", "sampling/test_draws.py"),
    ),
    Mutant(
        "sample-same-in-every-epoch",
        "methods/seeded.py",
        '"sample", epoch, slot)',
        '"sample", slot)',
        "neighbours are drawn anew in every epoch",
        SAMPLED,
    ),
    Mutant(
        "graphsaint-same-in-every-epoch",
        "methods/graph_saint.py",
        '"subgraph", epoch, slot)',
        '"subgraph", slot)',
        "subgraphs are drawn anew in every epoch",
        SAINT,
    ),
    # IMC: the map, its adjoint, the sweep
    Mutant(
        "imc-ridge-towards-zero",
        "methods/invariance.py",
        "moments.diagonal().add_(self.swept.prior[: h.shape[1]])",
        "moments.diagonal().add_(0 * self.swept.prior[: h.shape[1]])",
        "the ridge pulls the map towards the identity, so that a fresh sweep is exact",
        IMC,
    ),
    Mutant(
        "imc-adjoint-without-the-inverse",
        "methods/invariance.py",
        "coarse_mm(self.swept.Q, exact_mm(self.swept.K, dC))",
        "coarse_mm(self.swept.Q, dC)",
        "dh = Q K dC",
        IMC,
    ),
    Mutant(
        "imc-adjoint-of-other-rows",
        "methods/invariance.py",
        "return every(t if clean is None else clean, self.stride)",
        "return (t if clean is None else clean)[: len(self.swept.Q)]",
        "the map is fitted to the rows of today that belong to the rows of the sweep",
        IMC,
    ),
    Mutant(
        "imc-outside-contains-the-inside",
        "methods/imc.py",
        "outside=not self._overlapping)",
        "outside=False)",
        "S = M - P Q is what came from outside of the batch",
        IMC,
    ),
    Mutant(
        "imc-redrawn-adjoint-of-all-sums",
        "methods/invariance.py",
        "return product if Q is None or g is None else coarse_mm(Q.t(), g, minus_from=product)",
        "return product",
        "dC = M^T v - Q^T g where batches are redrawn",
        IMC,
    ),
    Mutant(
        "imc-dropout-is-age",
        "methods/imc.py",
        "min(HELPED * before, NOISE)",
        "HELPED * before",
        "a share that dropout keeps large is noise, and no reason to sweep",
        IMC,
    ),
    Mutant(
        "staged-source-too-old",
        "stores/background.py",
        "return write is self._last or write in self._pending",
        "return True",
        "a fetch is a source only while all that was pushed since is pending",
        ("stores/test_staged.py",),
    ),
    Mutant(
        "staged-fill-of-a-pending-write",
        "stores/background.py",
        "if writes.holds(cache):",
        "if False:",
        "no fetch fills a cache in which rows are pending",
        ("stores/test_staged.py",),
    ),
    Mutant(
        "imc-halo-sums-stay-at-home",
        "methods/imc.py",
        '            exact.publish(exact.tables["M"].values())\n',
        "            pass\n",
        "ranks read the sums of the halo rows that they compute",
        ("distributed/test_step.py",),
    ),
    Mutant(
        "imc-stored-maps-without-halo-rows",
        "engine/exact.py",
        "[batch.ext for batch in self._source.fixed()]",
        "[batch.core for batch in self._source.fixed()]",
        "the maps of batches with a halo are fitted to all their rows",
        IMC,
    ),
    Mutant(
        "imc-map-of-another-batch",
        "methods/imc.py",
        "each.index_select(0, batch.place)[0]",
        "each[batch.slot]",
        "a copy that several batches share reads the map of the batch in it",
        ("engine/test_padding.py",),
    ),
    Mutant(
        "star-at-the-last-method",
        "report/compare.py",
        "first = found[0]",
        "first = found[-1]",
        "the star of a comparison is at the method that reaches the score first",
        ("report/test_figure.py",),
    ),
    Mutant(
        "target-of-the-worst-run",
        "results.py",
        "best = (min if first.smaller_is_better else max)(",
        "best = (max if first.smaller_is_better else min)(",
        "compared runs are asked for a score near the best one",
        ("test_results.py",),
    ),
    Mutant(
        "choice-of-the-full-batch-in-every-small-step",
        "diagnostics/choice.py",
        "facts.step <= SMALL_STEP and not (facts.batch_norm and _little_outside(facts))",
        "facts.step <= SMALL_STEP",
        "with batch norm and a small halo IMC is faster in small steps too",
        ("diagnostics/test_choice.py",),
    ),
    Mutant(
        "choice-of-gas-under-batch-norm",
        "diagnostics/choice.py",
        "return not facts.batch_norm and _enough_rows(facts) and _little_outside(facts)",
        "return _enough_rows(facts) and _little_outside(facts)",
        "with batch norm a small halo is no reason for GAS",
        ("diagnostics/test_choice.py",),
    ),
    Mutant(
        "choice-without-a-look-at-the-halo",
        "diagnostics/choice.py",
        "for halo in (0.0, math.inf)",
        "for halo in (0.0, 0.0)",
        "the halo is measured where the choice depends on it",
        ("diagnostics/test_choice.py",),
    ),
    Mutant(
        "shared-copy-of-no-drawn-halo",
        "engine/fixed_cuts.py",
        "self._halo.fill_(self._none)[: halo.numel()] = halo",
        "self._halo.fill_(self._none)",
        "the copy has the halo rows that were drawn",
        ("engine/test_padding.py",),
    ),
    Mutant(
        "shared-copy-of-one-beta",
        "engine/fixed_cuts.py",
        "coefficients=None if beta is None else at(beta)",
        "coefficients=beta",
        "the copy has the coefficients of the batch",
        ("engine/test_padding.py",),
    ),
    Mutant(
        "shared-copy-for-good",
        "engine/shared_copy.py",
        "if slot in own and batch in self._from",
        "if False",
        "batches with a whole halo get recordings of their own",
        ("engine/test_padding.py",),
    ),
    Mutant(
        "shared-copy-of-what-does-not-fit",
        "engine/fixed_cuts.py",
        "n <= limit for n, limit in zip(each, self._limits, strict=True)",
        "True for n, limit in zip(each, self._limits, strict=True)",
        "a batch that needs more room is computed as it is",
        ("engine/test_padding.py",),
    ),
    Mutant(
        "cmc-measures-padding",
        "methods/cmc.py",
        "(batch.ext < self.num_nodes)",
        "(batch.ext <= self.num_nodes)",
        "rows of padding are not measured",
        ("engine/test_padding.py",),
    ),
    Mutant(
        "imc-lambda-of-few-rows",
        "methods/maps.py",
        "self.ridge * max(1.0, each**2)",
        "self.ridge * max(1.0, each)",
        "lambda grows with the square of the rows that are missing",
        IMC,
    ),
    Mutant(
        "imc-halo-for-large-batches",
        "methods/imc.py",
        "not self.redraw and rows < FEW_ROWS_PER_COLUMN * columns",
        "not self.redraw and rows >= FEW_ROWS_PER_COLUMN * columns",
        "halo rows are computed where batches are small",
        ("methods/test_imc.py",),
    ),
    Mutant(
        "staged-one-stage",
        "stores/host.py",
        "        self._stages.reverse()\n",
        "",
        "a write does not overwrite memory that the host has yet to store",
        ("stores/test_staged.py",),
    ),
    Mutant(
        "staged-stage-in-use",
        "stores/background.py",
        "self._last_but_one.resolve()",
        "pass",
        "memory of a write is used again once the host has stored it",
        ("stores/test_staged.py",),
    ),
    Mutant(
        "staged-in-place-anywhere",
        "stores/background.py",
        "begin = [write.piece for write in pushed] == list(range(len(pushed)))",
        "begin = True",
        "only the begin of a fetch is pending in place",
        ("stores/test_staged.py",),
    ),
    Mutant(
        "shared-copy-of-the-first-batch",
        "engine/shared_copy.py",
        "self._to.copy_(self._from[batch])",
        "self._to.copy_(next(iter(self._from.values())))",
        "the copy holds the batch of the step",
        ("engine/test_padding.py",),
    ),
    Mutant(
        "shared-copy-in-one-place",
        "engine/shared_copy.py",
        "tensors = [self._places[slot : slot + 1],",
        "tensors = [self._places[:1],",
        "a step on the copy reads the map of its batch",
        ("engine/test_padding.py",),
    ),
    Mutant(
        "shared-copy-without-the-halo-of-later-batches",
        "engine/fixed_cuts.py",
        "self._counts = self._drawn is None and self._limits[0] == room.halo",
        "self._counts = self._drawn is None and room.halo > 0",
        "that there is no room for a halo does not mean that batches have none",
        ("engine/test_padding.py",),
    ),
    Mutant(
        "own-recordings-of-batches-that-were-not-counted",
        "engine/shared_copy.py",
        "for slot in sorted(slots) if slot not in self._batches",
        "for slot in sorted(slots) if slot not in self._batches and slot not in own",
        "a resumed run cuts its batches as one that goes on does",
        ("engine/test_padding.py",),
    ),
    Mutant(
        "shared-copy-of-any-size",
        "engine/shared_copy.py",
        "wasteful = rows > most[0] or room.of(rows, rows) > most[1]",
        "wasteful = False",
        "one large batch does not make the steps of all others long",
        ("engine/test_padding.py",),
    ),
    Mutant(
        "imc-loss-of-halo-rows",
        "engine/layered.py",
        "            losses = losses[: batch.num_core]",
        "            pass",
        "the estimate of IMC with halo rows is the gradient of the loss of the core rows",
        ("reference/test_reference_imc.py", "methods/test_imc.py"),
    ),
    Mutant(
        "imc-sweep-of-outside-sums",
        "engine/exact.py",
        "return accumulate(copied(there), P, rows.pull(ext).to(there.dtype))",
        "return copied(there)",
        "a sweep continues from the sums of all neighbours, not of those outside of the batch",
        IMC,
    ),
    Mutant(
        "imc-no-dropout-on-sums-of-features",
        "methods/imc.py",
        "KnownSums(P, dropout(_pull(M[l], batch), rate, step.generator))",
        "KnownSums(P, _pull(M[l], batch))",
        "dropout on features falls on P X, where it is stored as M",
        ("methods/test_imc.py",),
    ),
    Mutant(
        "imc-ridge-of-zero-rows",
        "methods/maps.py",
        ".clamp_min(LEAST) * ridge",
        ".clamp_min(1e-30) * ridge",
        "the map of a batch whose rows are all zero at the sweep is finite",
        ("methods/test_imc.py",),
    ),
    Mutant(
        "imc-sweep-statistics-that-cancel",
        "kernels/row_moments.py",
        "else column_sums(part, squared=True)",
        "else column_sums(rows, squared=True) - (self._mean + shift).square() * len(part)",
        "the running variance is that of differences from the mean",
        ("methods/test_imc.py",),
    ),
    Mutant(
        "imc-sweep-statistics-of-pieces-alone",
        "kernels/row_moments.py",
        "self._about += _with_square(within, shift, self._size * share)",
        "self._about += within",
        "the running variance is that over all rows, not within the pieces of a sweep",
        ("methods/test_imc.py",),
    ),
    Mutant(
        "imc-share-in-the-order-of-batches",
        "methods/invariance.py",
        ".flatten(0, 1).sort(0).values.sum(0)",
        ".flatten(0, 1).sum(0)",
        "all ranks compute the same unexplained share",
        ("methods/test_imc.py",),
    ),
    Mutant(
        "bias-on-the-graph-without-dropped-edges",
        "diagnostics/errors.py",
        "source = source_on(run, run.epoch)",
        "source = run.source",
        "the bias under DropEdge is that of a graph of an epoch",
        ("diagnostics/test_bias_variance.py",),
    ),
    Mutant(
        "bias-leaves-sums-of-another-graph",
        "diagnostics/errors.py",
        "        regraph(run, source_on(run, max(0, run.epoch - 1)).problem)",
        "        pass",
        "the bias leaves tables with the sums of the graph of the epoch",
        ("diagnostics/test_bias_variance.py",),
    ),
    Mutant(
        "cmc-sums-of-ranks-in-any-order",
        "methods/cmc.py",
        "for sums in self.traits.sums:",
        "for sums in reversed(self.traits.sums):",
        "ranks fill the sums of messages before those of adjoints",
        ("identities/test_cmc.py",),
    ),
    Mutant(
        "imc-halo-rows-before-they-arrive",
        "engine/exact.py",
        'if outside and table.tier == "device"]',
        'if table.tier == "device"]',
        "maps read halo rows of other ranks after these have sent them",
        ("distributed/test_step.py",),
    ),
    Mutant(
        "imc-moments-of-equal-pieces",
        "kernels/row_moments.py",
        "_with_square(within, shift, self._size * share)",
        "_with_square(within, shift, self._size)",
        "pieces of rows count in mean and covariance as many rows as they have",
        ("methods/test_imc.py",),
    ),
    Mutant(
        "imc-statistics-without-their-adjoint",
        "methods/invariance.py",
        "op.map_adjoint(dC if of_map is None else dC + of_map)",
        "op.map_adjoint(dC)",
        "under batch norm the gradient flows through the statistics of all nodes to the map",
        IMC,
    ),
    Mutant(
        "imc-statistics-as-constants",
        "models/statistics.py",
        "return dweight, dbias, -dbias * scaled, -0.5 * dweight * scaled * inverse, None",
        "return dweight, dbias, -dbias * scaled, 0 * dweight, None",
        "the gradient flows through the variance over all nodes",
        IMC,
    ),
    Mutant(
        "imc-statistics-of-the-sweep",
        "methods/invariance.py",
        "Distribution(tuple(mean @ C for mean in means), C, found[1:])",
        "Distribution(tuple(mean[:, : C.shape[1]] for mean in means), C, found[1:])",
        "the statistics of all nodes follow the map",
        IMC,
    ),
    Mutant(
        "imc-halo-beyond-its-limit",
        "methods/imc.py",
        "ROWS_PER_COLUMN * columns - core.numel()))",
        "ROWS_PER_COLUMN * columns))",
        "halo rows are computed until there are enough rows for each column",
        ("methods/test_imc.py",),
    ),
    Mutant(
        "drawn-copy-in-one-place",
        "engine/padding.py",
        "[*parts, *none, slot]",
        "[*parts, *none, 0]",
        "a step on a copy reads and writes the numbers of its batch",
        ("engine/test_padding.py",),
    ),
    Mutant(
        "adjoints-not-weighed",
        "models/rows.py",
        "torch.mul(v, ctx.weights(), out=torch.empty_like(v))",
        "v",
        "adjoints of halo rows are multiplied by their trust",
        ("models/test_rows.py", *CMC),
    ),
    Mutant(
        "imc-products-under-autocast",
        "kernels/products.py",
        "with torch.autocast(a.device.type, enabled=False) if narrows else nullcontext():",
        "with nullcontext():",
        "autocast does not narrow the products of the map",
        IMC,
    ),
    # Gradients from core rows, the factor b / c, losses
    Mutant(
        "linear-bias-from-halo-rows",
        "models/rows.py",
        "db = column_sums(core)",
        "db = column_sums(v)",
        "(18): a bias takes its gradient from core rows",
        ROWS,
    ),
    Mutant(
        "linear-weights-from-halo-rows",
        "models/rows.py",
        "outer(core, first_rows(t, ctx.num_core))",
        "outer(v, t)",
        "(18): weights take their gradient from core rows",
        ROWS,
    ),
    Mutant(
        "narrow-linear-from-halo-rows",
        "models/rows.py",
        "v_core[ctx.num_core :] = 0",
        "v_core[ctx.num_core :] *= 1",
        "(18): weights that are applied before the aggregation take their gradient from core rows",
        ROWS,
    ),
    Mutant(
        "norm-shift-from-halo-rows",
        "models/rows.py",
        "dscale, column_sums(core)",
        "dscale, column_sums(g)",
        "the shift of a norm takes its gradient from core rows",
        ROWS,
    ),
    Mutant(
        "gas-weights-without-halo-rows",
        "models/passes.py",
        "replace(self, num_core=None) if self.grad_from_halo else self",
        "self",
        "GAS's weights before an aggregation take their gradient from every row that it reads",
        ("conformance/test_more_models.py", "identities/test_histories.py", "models/test_models.py"),
    ),
    Mutant(
        "batches-without-b-over-c",
        "engine/batches.py",
        "float(self.num_batches), slot, union)",
        "1.0, slot, union)",
        "the estimate of a batch has the factor b / c",
        ("identities/test_exactness.py", "engine/test_batches.py", *LMC),
    ),
    Mutant(
        "added-gradients-without-b-over-c",
        "engine/run.py",
        "p.grad.add_(g)",
        "p.grad.add_(g, alpha=1 / batch.weight)",
        "gradients that are added to others have the factor b / c too",
        ("identities/test_exactness.py", "engine/test_steps.py"),
    ),
    Mutant(
        "losses-without-importance",
        "engine/problem.py",
        "else losses * batch.importance",
        "else losses",
        "a loss is multiplied by the importance of its row",
        SAINT,
    ),
    Mutant(
        "losses-of-unlabelled-rows",
        "engine/problem.py",
        "y.where(labelled, -100)",
        "y",
        "only labelled training nodes have a loss",
        LMC,
    ),
    Mutant(
        "own-loss-node-weights-ignored",
        "engine/problem.py",
        "losses = losses * weight.to(losses.dtype)",
        "pass",
        "a loss is multiplied by the weight of its node",
        LOSSES,
    ),
    Mutant(
        "own-loss-weights-ignored-by-exact-passes",
        "engine/problem.py",
        "None if graph.weight is None else graph.weight[rows]",
        "None",
        "exact adjoints are those of the weighted losses",
        LOSSES,
    ),
    Mutant(
        "own-loss-divided-by-the-number-of-nodes",
        "graph/graph.py",
        "self.num_labelled if self.weight is None else self.weight[self.train].double().sum()",
        "self.num_labelled",
        "the sum of weighted losses is divided by the sum of the weights",
        LOSSES,
    ),
    Mutant(
        "own-loss-of-unlabelled-rows",
        "engine/problem.py",
        "return losses.where(labelled, 0)",
        "return losses",
        "only labelled training nodes have a loss of the user's own",
        LOSSES,
    ),
    Mutant(
        "own-loss-reads-unlabelled-outputs",
        "engine/problem.py",
        "loss(outputs.where(of_rows, 0), ",
        "loss(outputs, ",
        "a loss that overflows on unlabelled rows passes no NaN into the gradient",
        ("test_losses.py",),
    ),
    Mutant(
        "own-loss-forgotten-by-diagnostics",
        "diagnostics/errors.py",
        '"loss": problem.loss',
        '"loss": None',
        "gradient errors are measured with the loss of the run",
        LOSSES,
    ),
    Mutant(
        "own-loss-rows-may-mix",
        "losses.py",
        "if not torch.allclose(again, rows",
        "if False and not torch.allclose(again, rows",
        "a loss that mixes rows is refused",
        ("test_losses.py",),
    ),
    Mutant(
        "metrics-top-k-takes-one-label",
        "train/metrics.py",
        "ranks < y.sum(1, keepdim=True)",
        "ranks < 1",
        "a node with k labels has k predicted ones",
        ("train/test_metrics.py",),
    ),
    Mutant(
        "tasks-integer-masks-are-node-numbers",
        "graph/checks.py",
        "if 1 < n == chosen.numel()",
        "if False and 1 < n == chosen.numel()",
        "a mask of integers is not read as node numbers",
        ("graph/test_tasks.py",),
    ),
    # Exact passes
    Mutant(
        "exact-adjoints-of-the-last-chunk",
        "engine/layered.py",
        "table.push if isinstance(chunk.ext, slice) else table.add",
        "table.push",
        "every chunk adds to the adjoints of the rows that it reads",
        LMC,
    ),
    Mutant(
        "exact-messages-not-activated",
        "engine/layered.py",
        "problem.model.layer(l - 1).activate(states[l - 2].pull(rows), Pass())",
        "states[l - 2].pull(rows)",
        "T holds rows after norm and activation",
        CMC,
    ),
    Mutant(
        "exact-sums-not-transposed",
        "engine/exact.py",
        "problem.transposed if transposed else problem.blocks",
        "problem.blocks",
        "U = P^T V, with a P that is not symmetric",
        ("identities/test_cmc.py", "conformance/test_more_models.py"),
    ),
    # Norms and dropout
    Mutant(
        "batch-norm-of-core-and-halo-together",
        "models/activation.py",
        "torch.cat([self._core(x[:core]), self._halo(x[core:])])",
        "self._core(x)",
        "core and halo rows have batch statistics of their own",
        BATCH_NORM,
    ),
    Mutant(
        "batch-norm-affine-from-halo-rows",
        "models/activation.py",
        "self.weight.detach(), self.bias.detach()",
        "self.weight, self.bias",
        "the affine parameters of batch norm take their gradient from core rows",
        BATCH_NORM,
    ),
    Mutant(
        "batch-renorm-not-limited",
        "models/activation.py",
        "R_MAX, D_MAX = 1.2, 0.2",
        "R_MAX, D_MAX = 100.0, 100.0",
        "the corrections towards running statistics are limited",
        ("models/test_batch_norm.py", *CMC),
    ),
    Mutant(
        "batch-renorm-shift-reversed",
        "models/activation.py",
        "((mu - mean) * scale)",
        "((mean - mu) * scale)",
        "d = (mu - m) / S",
        ("models/test_batch_norm.py", *CMC),
    ),
    Mutant(
        "batch-renorm-variance-without-the-means",
        "models/activation.py",
        " + difference.square() * (1 - share)",
        "",
        "the running variance counts the distance of the batch's mean from the running one",
        ("models/test_batch_norm.py", *CMC),
    ),
    Mutant(
        "layer-norm-of-all-rows",
        "models/activation.py",
        "F.layer_norm(x, x.shape[1:], eps=EPS)",
        "F.layer_norm(x, x.shape, eps=EPS)",
        "layer norm is computed row by row",
        LMC,
    ),
    Mutant(
        "dropout-not-scaled",
        "kernels/dropout.py",
        "return (x * keep).mul_(scale)",
        "return x * keep",
        "kept elements are scaled by 1 / (1 - p)",
        ("kernels/test_dropout.py", "models/test_activation.py"),
    ),
    Mutant(
        "sparse-dropout-not-scaled",
        "models/activation.py",
        "h.data * keep * scale",
        "h.data * keep",
        "kept elements of sparse features are scaled by 1 / (1 - p)",
        ("models/test_activation.py", "models/test_models.py"),
    ),
    # Recurrent methods
    Mutant(
        "sse-momentum-ignored",
        "methods/sse.py",
        ".detach(), self.momentum)",
        ".detach(), 1.0)",
        "the history is a running average",
        RECURRENT,
    ),
    Mutant(
        "sse-adjoint-not-masked",
        "methods/sse.py",
        " * (fresh > 0)",
        "",
        "an adjoint passes where the state is positive",
        RECURRENT,
    ),
    Mutant(
        "lmc4rec-ages-ignored",
        "methods/lmc4rec.py",
        "H_halo * shares",
        "H_halo",
        "a halo row is corrected in proportion to its age",
        RECURRENT,
    ),
    Mutant(
        "lmc4rec-all-rows-are-new",
        "methods/lmc4rec.py",
        "weight_drift.note(step, step.batch.rows)",
        "weight_drift.note(step, slice(None))",
        "only the rows of the core are stored in a step",
        RECURRENT,
    ),
    Mutant(
        "lmc4rec-states-not-activated",
        "methods/lmc4rec.py",
        "step.H[1].pull(batch.ext).clamp_min(0)",
        "step.H[1].pull(batch.ext)",
        "(20): the message is H = relu(Z)",
        RECURRENT,
    ),
    Mutant(
        "lmc4rec-adjoint-step-not-masked",
        "methods/lmc4rec.py",
        "V * (z > 0)",
        "V",
        "(22): V = dL/dZ is zero where Z is not positive",
        RECURRENT,
    ),
    Mutant(
        "lmc4rec-drift-of-adjoints-ignored",
        "models/equilibrium.py",
        "outer = outer * a",
        "outer = outer * 1",
        "undo_drift multiplies the adjoints from outside by what is left of the loss gradient",
        RECURRENT,
    ),
    Mutant(
        "lmc4rec-drift-of-adjoints-above-one",
        "models/equilibrium.py",
        "best_factor(D, now).clamp(max=1)",
        "best_factor(D, now)",
        "the factor of the adjoints is at most 1",
        RECURRENT,
    ),
    Mutant(
        "lmc4rec-growth-not-limited",
        "models/equilibrium.py",
        "limit = MAX_GROWTH * moved",
        "limit = MAX_GROWTH + moved",
        "a column grows by at most ten times the relative change of W",
        RECURRENT,
    ),
    Mutant(
        "recurrent-gradients-from-halo-rows",
        "models/equilibrium.py",
        "ctx.equation, ctx.num_core\n",
        "ctx.equation, z.shape[0]\n",
        "(25): W takes its gradient from core rows where halo rows are solved for too",
        RECURRENT,
    ),
    Mutant(
        "adjoint-equation-not-masked",
        "models/equilibrium.py",
        "out.mul_(active)",
        "pass",
        "(23): an adjoint passes where the state is positive",
        RECURRENT,
    ),
    Mutant(
        "outer-adjoints-times-the-transpose",
        "methods/recurrent.py",
        "sums @ model.W.detach()",
        "sums @ model.W.detach().t()",
        "(23): adjoints from outside are multiplied by W",
        RECURRENT,
    ),
    Mutant(
        "cmc4rec-sums-not-updated",
        "methods/cmc4rec.py",
        "+ spmm(P_core, change)",
        "+ 0 * spmm(P_core, change)",
        "M = P H and U = P^T V hold at all times",
        RECURRENT,
    ),
    Mutant(
        "cmc4rec-sums-of-inactive-states",
        "methods/cmc4rec.py",
        'rows.clamp_min(0) if name == "H" else rows',
        "rows",
        "M sums H = relu(Z)",
        RECURRENT,
    ),
    Mutant(
        "cmc4rec-exact-sums-of-inactive-states",
        "engine/exact.py",
        "read.clamp_min(0) if relu else read",
        "read",
        "M sums H = relu(Z) after a refresh too",
        RECURRENT,
    ),
    Mutant(
        "histories-updated-in-every-step",
        "engine/recurrent.py",
        "< q * 2**63",
        "< 2**63",
        "with dropout a share q of the steps updates the histories",
        ("conformance/test_recurrent_duties.py", "identities/test_fixed_points.py"),
    ),
    Mutant(
        "histories-updated-by-slot",
        "engine/recurrent.py",
        '"history update", run.epoch, batch.slot',
        '"history update", batch.slot',
        "which steps update the histories is decided anew in every epoch",
        ("conformance/test_recurrent_duties.py", "identities/test_fixed_points.py"),
    ),
    Mutant(
        "dropout-in-steps-that-update-histories",
        "engine/recurrent.py",
        "dropout and (rules.q is None or not updates)",
        "dropout",
        "a step that updates the histories runs without dropout",
        ("conformance/test_recurrent_duties.py", "identities/test_fixed_points.py"),
    ),
    # Run folders
    Mutant(
        "file-digest-not-compared",
        "train/sealed.py",
        "if head[_DIGEST_AT:] != digest.hexdigest().encode():",
        "if False:",
        "a file with another digest is damaged",
        FILES,
    ),
    Mutant(
        "file-header-not-hashed",
        "train/sealed.py",
        "hashlib.sha256(head[:_DIGEST_AT] + _BLANK)",
        "hashlib.sha256(head[:8] + _BLANK)",
        "the digest is that of the whole file",
        FILES,
    ),
    Mutant(
        "file-previous-not-kept",
        "train/checkpoint.py",
        "metadata, run_dir / PREVIOUS)",
        "metadata)",
        "the last two checkpoints are kept",
        FILES,
    ),
    Mutant(
        "file-damaged-is-rotated",
        "train/checkpoint.py",
        "    os.replace(whole, newest)\n",
        "",
        "the next checkpoint does not replace the one that is whole",
        FILES,
    ),
    Mutant(
        "file-position-not-checked",
        "train/checkpoint.py",
        "p.step <= run.num_batches",
        "True",
        "the position is one of this run",
        FILES,
    ),
    Mutant(
        "file-optimiser-not-checked",
        "train/checkpoint.py",
        "if not fits:",
        "if False:",
        "the state of the optimiser fits its parameters",
        FILES,
    ),
    Mutant(
        "file-generator-not-restored",
        "train/checkpoint.py",
        'torch.set_rng_state(self.generators["cpu"])',
        "pass",
        "a wrapped network continues with the state of the global generator",
        FILES,
    ),
    Mutant(
        "file-not-locked",
        "files.py",
        "if not _lock(file):",
        "if False:",
        "one process uses a folder",
        FILES,
    ),
    Mutant(
        "file-parts-not-removed",
        "files.py",
        "partial.unlink(missing_ok=True)",
        "pass",
        "temporary files of a crash are removed",
        FILES,
    ),
    Mutant(
        "file-folder-not-synced",
        "files.py",
        "        _sync_folder(path.parent)\n",
        "",
        "the folder is synced after a rename",
        FILES,
    ),
    Mutant(
        "file-records-not-synced",
        "train/run_folder.py",
        "            sync(self._epochs)\n",
        "",
        "records reach the disk before their checkpoint",
        FILES,
    ),
    Mutant(
        "file-config-not-needed",
        "train/run_folder.py",
        "if holds_run(path) and not file.exists():",
        "if False:",
        "files of a run without config.json are refused",
        FILES,
    ),
    Mutant(
        "file-records-not-needed",
        "train/run_folder.py",
        "self._optimizer, len(records))",
        "self._optimizer)",
        "a checkpoint is used only with the records of its epochs",
        FILES,
    ),
    Mutant(
        "file-gap-accepted",
        "results.py",
        "record.epoch != number or ",
        "",
        "the records are those of the epochs from 1 on",
        FILES,
    ),
    Mutant(
        "file-cut-line-kept",
        "results.py",
        "file.truncate(sum(len(line) + 1 for line in whole))",
        'file.write(b"")',
        "a record is not appended to a line that was cut off",
        FILES,
    ),
    Mutant(
        "file-divided-epoch-regraphed",
        "engine/run.py",
        "if start == 0:  # later",
        "if True:  # later",
        "a divided epoch keeps the sums of its graph",
        FILES,
    ),
    Mutant(
        "signal-takes-handlers",
        "train/signals.py",
        " if signal.getsignal(s) == signal.SIG_DFL}",
        "}",
        "signals that the program ignores or handles stay as they are",
        FILES,
    ),
    Mutant(
        "signal-number-lost",
        "train/signals.py",
        "received[0] if received else signal.SIGINT",
        "signal.SIGINT",
        "the exit code is 128 plus the number of the signal",
        FILES,
    ),
    # ranks of a distributed run
    Mutant(
        "ranks-adjoints-of-mirrors-lost",
        "engine/distributed/layer.py",
        "return own.index_add_(0, self.send, back)",
        "return own",
        "adjoints of mirrors are added to those of their owners",
        LAYER,
    ),
    Mutant(
        "ranks-rows-sent-in-another-order",
        "engine/distributed/layer.py",
        "[position[rows] for rows in send]",
        "list(send)",
        "the rows to send are numbers of computed rows",
        LAYER,
    ),
    Mutant(
        "ranks-batch-norm-adjoint-local",
        "engine/distributed/layer.py",
        "return ctx.world.sum(grads[0].contiguous().clone()), None",
        "return grads[0], None",
        "the adjoint of a statistic over ranks is a sum over ranks",
        LAYER,
    ),
    Mutant(
        "ranks-halo-not-reached",
        "engine/distributed/layer.py",
        "mask[self._row[torch.isin(self._part, chosen)]] = True",
        "mask[self._row[:0]] = True",
        "LMC4Conv by layers computes the rows next to the batches of all ranks",
        LAYER,
    ),
    Mutant(
        "ranks-gradient-of-halo-rows",
        "engine/batches.py",
        "whole = len(union) == sum(map(len, turns.parts))",
        "whole = True",
        "parameters take their gradient from core rows by layers too",
        LAYER,
    ),
    Mutant(
        "ranks-solvers-stop-alone",
        "solvers/loop.py",
        "norms = self._norms if self._total is None else self._total(self._norms.square()).sqrt_()",
        "norms = self._norms",
        "a solver stops by the norm over the rows of all ranks",
        LAYER,
    ),
    Mutant(
        "ranks-loss-of-own-nodes",
        "engine/problem.py",
        "whole = problem.graph if problem.exchange is None else problem.exchange.shard\n    outputs",
        "whole = problem.graph\n    outputs",
        "losses are divided by the labelled nodes of the whole graph",
        STEP,
    ),
    Mutant(
        "ranks-fewest-steps",
        "engine/distributed/ownership.py",
        "self.steps = max(self.num_batches)",
        "self.steps = min(self.num_batches)",
        "an epoch has the steps of the rank with the most batches",
        STEP,
    ),
    Mutant(
        "ranks-one-seed",
        "engine/distributed/ownership.py",
        'return seed if rank == 0 else derive(seed, "rank", rank)',
        "return seed",
        "every rank draws its own batches and masks",
        TRAINING,
    ),
    Mutant(
        "ranks-lists-of-other-parts",
        "engine/distributed/step.py",
        "order = each.sort(stable=True).indices",
        "order = torch.arange(each.numel(), device=each.device)",
        "a part sends the rows of its own nodes",
        STEP,
    ),
    Mutant(
        "ranks-running-statistics-summed",
        "engine/distributed/step.py",
        "buffer.copy_(next(sums) / len(active))",
        "buffer.copy_(next(sums))",
        "running statistics are averaged over ranks",
        STEP,
    ),
    Mutant(
        "ranks-sums-of-rows-for-differences",
        "engine/distributed/step.py",
        ".to(self._run.problem.accumulate_dtype) - stored",
        ".to(self._run.problem.accumulate_dtype)",
        "sums change by the differences of mirrored rows",
        STEP,
    ),
    Mutant(
        "ranks-push-counted-by-epoch",
        "engine/distributed/step.py",
        "(epoch * self.schedule.steps + step + 1) % every == 0",
        "(step + 1) % every == 0",
        "sync_every counts the steps of all epochs",
        TRAINING,
    ),
    Mutant(
        "ranks-replicas-unchecked",
        "engine/distributed/step.py",
        "            check_replicas(self._run.problem.model, self)",
        "            pass",
        "parameters are compared at every epoch",
        TRAINING,
    ),
    Mutant(
        "ranks-adjoints-replaced",
        "engine/distributed/exchange.py",
        "table.add(rows, values)  # one rank",
        "table.push(rows, values)  # one rank",
        "exact adjoints of mirrors are added to those of owners",
        ("distributed/test_exact.py",),
    ),
    Mutant(
        "ranks-bytes-as-numbers",
        "engine/distributed/world.py",
        "self.sent += rows.numel() * rows.element_size()",
        "self.sent += rows.numel()",
        "traffic is counted in bytes",
        TRAINING,
    ),
    Mutant(
        "ranks-mirrors-without-neighbours",
        "engine/distributed/matrices.py",
        "model.matrices(shard.completed(), dtype)",
        "model.matrices(shard.graph.adj, dtype)",
        "P of mirrors is normalised by their degrees in the whole graph",
        STEP,
    ),
    Mutant(
        "ranks-degree-of-local-graph",
        "engine/problem.py",
        "if self.exchange is not None:  # neighbours",
        "if False:  # neighbours",
        "completeness of mirrors reads their degree in the whole graph",
        STEP,
    ),
    Mutant(
        "ranks-any-file-of-a-checkpoint",
        "train/manifest.py",
        'if metadata["digest"] != self.digests.get(path, metadata["digest"]):',
        "if path is None:",
        "the manifest names the digest of every file",
        ("distributed/test_rank_resume.py",),
    ),
    Mutant(
        "ranks-rows-of-other-parts",
        "train/manifest.py",
        "place = {first: (k, j) for k, firsts",
        "place = {first: (k, 0) for k, firsts",
        "a checkpoint is read by part on another number of ranks",
        ("distributed/test_rank_resume.py",),
    ),
    Mutant(
        "ranks-settings-unchecked",
        "engine/distributed/world.py",
        "if others.get(name) != text:",
        "if others.get(name) is None:",
        "settings are the same on every rank",
        ("distributed/test_failures.py",),
    ),
)


def stale(mutants: tuple[Mutant, ...] = MUTANTS, source: Path = SOURCE) -> list[str]:
    """One line for every mutant that no longer fits the sources or the tests."""
    found = [
        f"{m.name}: this name occurs twice" for k, m in enumerate(mutants) if m.name in {x.name for x in mutants[:k]}
    ]
    for mutant in mutants:
        file = source / "lmc" / mutant.file
        times = file.read_text().count(mutant.old) if file.is_file() else 0
        if times != 1:
            found.append(f"{mutant.name} is stale: expected {mutant.old!r} once in {mutant.file} (got {times} times)")
        elif not parses(mutant.applied(source)):
            found.append(f"{mutant.name} is stale: {mutant.file} is not Python after the change")
        missing = [name for name in mutant.tests if not (ROOT / "tests" / name).is_file()]
        if missing:
            found.append(f"{mutant.name} is stale: there is no {', '.join(missing)}")
    return found


def parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


@contextmanager
def mutated(mutant: Mutant, copy: Path) -> Iterator[None]:
    """The copy of the sources with the fault."""
    file = copy / "lmc" / mutant.file
    was = file.read_text()
    file.write_text(mutant.applied(copy))
    try:
        yield
    finally:
        file.write_text(was)


def run_tests(copy: Path, tests: list[str]) -> int:
    """Run test files with the sources in ``copy``; gives pytest's exit code, or 1 if it took too long."""
    # the files of two mutants may agree in size and time, so no compiled files are kept
    one_thread = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        *(f"tests/{name}" for name in tests),
    ]
    environment = {**os.environ, **one_thread, "PYTHONPATH": str(copy)}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, timeout=TIMEOUT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return 1
    return done.returncode


def earlier_results(mutants: list[Mutant]) -> dict[str, dict[str, object]]:
    """The results of a stopped run, by name, of mutants that are still the same."""
    fingerprints = {m.name: m.fingerprint for m in mutants}
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.is_file() else []
    return {row["name"]: row for row in rows if fingerprints.get(row["name"]) == row["fingerprint"]}


def campaign(mutants: list[Mutant], resume: bool, console: Console) -> int:
    """Run the tests of every mutant; gives the exit code."""
    RESULTS.parent.mkdir(exist_ok=True)
    results = earlier_results(mutants) if resume else {}
    if not resume:
        RESULTS.unlink(missing_ok=True)
    remaining = [m for m in mutants if m.name not in results]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        tests = sorted({name for mutant in remaining for name in mutant.tests})
        say(console, f"{len(tests)} test files without a mutant ...")
        if tests and run_tests(copy, tests) != 0:
            say(console, f"expected these to pass without a mutant: {' '.join(tests)}")
            return 2
        for number, mutant in enumerate(remaining, start=1):
            start = time.perf_counter()
            with mutated(mutant, copy):
                code = run_tests(copy, list(mutant.tests))
            # other codes mean that pytest could not run: such a mutant shows nothing
            result = {0: "survived", 1: "killed"}.get(code, f"pytest failed with code {code}")
            row = {"name": mutant.name, "fingerprint": mutant.fingerprint, "result": result}
            row["seconds"] = round(time.perf_counter() - start, 1)
            results[mutant.name] = row
            with RESULTS.open("a") as file:
                file.write(json.dumps(row) + "\n")
            say(console, f"{number}/{len(remaining)}  {result}  {mutant.name}  {row['seconds']} s")
    return report(mutants, results, console)


def report(mutants: list[Mutant], results: dict[str, dict[str, object]], console: Console) -> int:
    """Print the table; gives the exit code."""
    table = Table("mutant", "file", "rule that it breaks", "result")
    for mutant in mutants:
        table.add_row(mutant.name, mutant.file, mutant.breaks, str(results[mutant.name]["result"]))
    console.print(table)
    killed = sum(row["result"] == "killed" for row in results.values())
    say(console, f"{killed} of {len(mutants)} killed: {killed / len(mutants):.1%} (at least {REQUIRED:.0%} required)")
    return 0 if killed >= REQUIRED * len(mutants) else 1


def say(console: Console, text: str) -> None:
    """One line, whatever its length."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests on mutants of the library.")
    parser.add_argument("--only", metavar="PATTERN", default="", help="mutants whose name or file contains this text")
    parser.add_argument("--resume", action="store_true", help="keep the results of a run that was stopped")
    parser.add_argument("--check", action="store_true", help="only verify that every old text occurs exactly once")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    problems = stale()
    for problem in problems:
        say(console, problem)
    if problems or options.check:
        say(console, f"{len(MUTANTS)} mutants, {len(problems)} of them stale")
        return 2 if problems else 0
    chosen = [m for m in MUTANTS if options.only in m.name or options.only in m.file]
    if not chosen:
        say(console, f"expected a mutant whose name or file contains {options.only!r} (got none)")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a stopped run removes its copy of the sources
    return campaign(chosen, options.resume, console)


if __name__ == "__main__":
    raise SystemExit(main())
