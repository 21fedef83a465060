"""Fixed points against direct solves, and the errors of solvers."""

from __future__ import annotations

import warnings
from collections import Counter

import pytest
import torch
from torch import Tensor

from helpers import chance, random_graph
from lmc.errors import ConfigError, SolverError
from lmc.graph import gcn_norm
from lmc.models.equilibrium import Equilibrium
from lmc.solvers import Anderson, Map, Picard, Solver, solve, solver

ALL = [Picard(tol=1e-12), Picard(tol=1e-12, damping=0.7), Anderson(tol=1e-12), Anderson(tol=1e-12, damping=0.8)]


def contraction(radius: float, n: int = 12, seed: int = 0) -> tuple[Map, Tensor, Tensor]:
    """x -> x A + c with |A| = ``radius``, its start, and its fixed point by a dense solve."""
    A = torch.randn(n, n, generator=chance(seed), dtype=torch.float64)
    A = (A + A.t()) / 2
    A *= radius / torch.linalg.matrix_norm(A, 2)
    c = torch.randn(5, n, generator=chance(seed + 1), dtype=torch.float64)

    def f(x: Tensor, out: Tensor) -> None:
        torch.addmm(c, x, A, out=out)

    return f, torch.zeros_like(c), torch.linalg.solve(torch.eye(n, dtype=torch.float64) - A, c, left=False)


@pytest.mark.parametrize("chosen", ALL, ids=repr)
def test_the_fixed_point_is_that_of_a_direct_solve(chosen: Solver) -> None:
    f, start, want = contraction(0.8)
    found = solve(f, start, chosen)
    assert found.converged
    assert found.residual <= 1e-12
    torch.testing.assert_close(found.value, want, rtol=1e-10, atol=1e-10)


def test_the_start_is_not_changed_and_a_good_start_needs_few_steps() -> None:
    f, start, want = contraction(0.8)
    cold = solve(f, start, Picard(tol=1e-10))
    assert not bool(start.any())
    warm = solve(f, want + 1e-8, Picard(tol=1e-10))
    assert solve(f, want, Picard(tol=1e-10)).steps == 1
    assert warm.steps < cold.steps / 2


@pytest.mark.parametrize("chosen", ALL, ids=repr)
def test_a_start_that_is_right_up_to_a_factor_is_as_good_as_the_solution(chosen: Solver) -> None:
    f, start, want = contraction(0.9)
    c = torch.empty_like(start)
    f(start, c)  # f(0)
    for factor in (0.5, 30.0):
        found = solve(f, factor * want, chosen, origin=c)
        assert found.steps <= 2 + (getattr(chosen, "damping", 1) < 1)
        torch.testing.assert_close(found.value, want, rtol=1e-9, atol=1e-9)
    assert solve(f, want, chosen, origin=c).steps == 1
    opposite = solve(f, -want, chosen, origin=c)  # a factor below 0 would be needed: zero is the best there is
    assert opposite.converged
    torch.testing.assert_close(opposite.value, want, rtol=1e-9, atol=1e-9)


def test_scaling_holds_for_maps_with_a_relu() -> None:
    A = 0.9 * torch.rand(6, 6, generator=chance(), dtype=torch.float64) / 6
    c = torch.randn(5, 6, generator=chance(1), dtype=torch.float64)

    def f(x: Tensor, out: Tensor) -> None:
        torch.addmm(c, x.relu(), A, out=out)

    want = solve(f, torch.zeros_like(c), Picard(tol=1e-14)).value
    assert bool((want < 0).any())
    # half of the solution solves the equation with half of c: a history is like this after c has doubled
    plain, scaled = (solve(f, want / 2, Picard(tol=1e-10), origin=origin) for origin in (None, c))
    assert scaled.steps <= 2 < plain.steps
    torch.testing.assert_close(scaled.value, want, rtol=1e-9, atol=1e-9)


def test_a_start_is_never_worse_than_zero_after_the_first_step() -> None:
    f, zero, _ = contraction(0.9)
    c = torch.empty_like(zero)
    f(zero, c)
    seen: list[float] = []

    def spied(x: Tensor, out: Tensor) -> None:
        f(x, out)
        seen.append(float((out - x).norm()))

    for seed in range(20):
        start = 10 * torch.randn(zero.shape, generator=chance(seed), dtype=torch.float64)
        solve(spied, start, Picard(tol=1e-12, max_steps=2), origin=c)
    # the residual of a J(x) + c is J of the residual of a x, which is at most |c|, the residual at zero
    assert max(seen[1::2]) <= 0.9 * float(c.norm()) * (1 + 1e-12)
    assert min(seen[0::2]) > float(c.norm())


@pytest.mark.parametrize("origin", [False, True])
def test_zero_and_tiny_starts_converge(origin: bool) -> None:
    f, zero, want = contraction(0.8)
    c = torch.empty_like(zero)
    f(zero, c)
    for start in (zero, 1e-200 * torch.ones_like(zero)):
        found = solve(f, start, Picard(tol=1e-10), origin=c if origin else None)
        torch.testing.assert_close(found.value, want, rtol=1e-8, atol=1e-8)


def test_anderson_needs_fewer_steps_where_the_map_contracts_slowly() -> None:
    f, start, _ = contraction(0.99)
    picard = solve(f, start, Picard(tol=1e-10, max_steps=5000))
    anderson = solve(f, start, Anderson(tol=1e-10, memory=8))
    assert picard.converged
    assert anderson.converged
    assert anderson.steps < picard.steps / 5


@pytest.mark.parametrize("chosen", [Picard(tol=1e-12, max_steps=7), Anderson(tol=1e-12, max_steps=7)], ids=repr)
def test_reaching_the_maximum_number_of_steps_is_reported(chosen: Solver) -> None:
    f, start, want = contraction(0.99)
    found = solve(f, start, chosen)
    assert not found.converged
    assert found.steps == 7
    assert found.residual > 1e-12
    assert not torch.allclose(found.value, want)


@pytest.mark.parametrize("every", [1, 3, 10])
def test_the_residual_can_be_read_every_few_steps(every: int) -> None:
    f, start, want = contraction(0.8)
    often, seldom = (solve(f, start, Picard(tol=1e-10, check_every=k)) for k in (1, every))
    assert often.steps <= seldom.steps < often.steps + every
    torch.testing.assert_close(seldom.value, want, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("growth", [1.5, 1e30])
def test_divergence_stops_and_names_the_remedy(growth: float) -> None:
    def f(x: Tensor, out: Tensor) -> None:
        torch.mul(x, growth, out=out)

    with pytest.raises(SolverError, match=r"settles.*project the weights"):
        solve(f, torch.ones(3, 2), Picard(), remedy="project the weights")


def test_nan_raises_an_error() -> None:
    def f(x: Tensor, out: Tensor) -> None:
        out.fill_(torch.nan)

    with pytest.raises(SolverError, match="nan"):
        solve(f, torch.zeros(2, 2), Picard())


def test_an_iteration_allocates_nothing_of_the_size_of_x() -> None:
    f, start, _ = contraction(0.8)
    seen: set[int] = set()

    def spied(x: Tensor, out: Tensor) -> None:
        seen.update((x.data_ptr(), out.data_ptr()))
        f(x, out)

    assert solve(spied, start, Picard(tol=1e-12)).steps > 20
    assert len(seen) == 2  # two buffers that change places


@pytest.mark.parametrize("kind", [Picard, Anderson])
def test_an_iteration_of_the_equations_is_two_products_and_allocates_nothing(
    kind: type[Picard] | type[Anderson],
) -> None:
    g = random_graph(n=300)
    P, d = gcn_norm(g.adj, torch.float32), 32
    W = torch.randn(d, d, generator=chance()) / 100
    C = torch.randn(g.num_nodes, d, generator=chance(1))

    def events(steps: int) -> tuple[Counter[str], list[int]]:
        equation = Equilibrium(P, P, W, kind(tol=1e-30, max_steps=steps))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it has not converged
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
                equation.states(C, C)
                equation.adjoints(C, C, C)
        counts = Counter(event.name for event in seen.events())
        return counts, [abs(e.cpu_memory_usage) for e in seen.events() if e.name == "[memory]"]

    (few, small), (many, large) = events(10), events(30)
    assert many["aten::addmm"] - few["aten::addmm"] == 2 * 2 * 20  # one sparse and one dense, in each equation
    assert sum(m >= C.nbytes for m in large) == sum(m >= C.nbytes for m in small)
    assert len(large) == len(small) or kind is Anderson  # which has small systems to solve


def test_a_zero_fixed_point_is_found() -> None:
    def f(x: Tensor, out: Tensor) -> None:
        out.zero_()

    found = solve(f, torch.ones(3, 2), Picard())
    assert found.converged
    assert not bool(found.value.any())


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Picard, {"tol": 0}),
        (Picard, {"max_steps": 0}),
        (Picard, {"damping": 1.5}),
        (Picard, {"check_every": 0}),
        (Anderson, {"memory": 1}),
    ],
)
def test_bad_settings_are_refused(kind: type[Picard] | type[Anderson], wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"expected \w+ (of|in)"):
        kind(**wrong)  # type: ignore[arg-type]


def test_solvers_have_names() -> None:
    assert solver("anderson") == Anderson()
    assert solver(Picard(tol=0.1)) == Picard(tol=0.1)
    with pytest.raises(ConfigError, match=r"picard.*got 'newton'"):
        solver("newton")
