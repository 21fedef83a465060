"""The report page: its data, what it refuses, and how it works in a real browser."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lmc.cli import app
from lmc.errors import CheckpointError
from lmc.report.names import METHODS
from lmc.report.page import report_page
from lmc.results import About, EpochRecord, ErrorRecord, write_lines
from tests.report.browser import PROGRAM, Browser

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=2>"
ENVIRONMENT = {"torch": "2.11", "machine": "Linux"}


def write_run(folder: Path, label: str, rate: float, epochs: int = 20, wanted: int = 20, **config: object) -> Path:
    """A run folder as `lmc compare` writes it."""
    folder.mkdir(parents=True)
    settings = {"graph": "tiny-like", "epochs": wanted, "method": {"name": label.partition(":")[0]}, "lr": 0.01,
                "metrics": ["accuracy"], "direction": "max", "model": {"name": "GCN", "arguments": {"hidden": 8}},
                "parameters": {"w": [2, 2]}}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings | config))

    def epoch(k: int) -> EpochRecord:
        share = 1 - math.exp(-rate * k)
        return EpochRecord(k, 3 * (1 - share) + 0.1, 0.5 * k, {"val": share - 0.01, "test": share - 0.02})

    write_lines(folder / "epochs.jsonl", [epoch(k) for k in range(1, epochs + 1)])
    if label not in ("full", "imc"):
        stale = {"H 1": 0.1, "H 2": 0.2, "V 1": 0.3}
        errors = [ErrorRecord(k, {"layer 1": 0.4, "layer 2": 3e-8}, 0.2 / k, 0.07, stale) for k in (5, 10)]
        write_lines(folder / "errors.jsonl", errors)
    partition = {"num_parts": 10.0, "edge_cut": 0.25, "balance": 1.03, "halo_ratio": 2.5, "kept": 0.75}
    memory = {"planned": 2.0e6, "planned step": 1e6, "measured": 2.1e6, "measured step": 1.1e6}
    about = About(label, f"lmc compare tiny-like --methods {label}", ENVIRONMENT, partition, memory)
    write_lines(folder / "about.json", [about])
    return folder


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    """Four finished methods, of which gas is the first to reach the target."""
    rates = {"full": 0.1, "gas": 0.4, "lmc:alpha=0.8": 0.3, "imc": 0.35}
    for label, rate in rates.items():
        write_run(tmp_path / "c" / label.replace(":", "_"), label, rate, lr=rate)
    about = About("", "lmc compare tiny-like", ENVIRONMENT, methods=[label.replace(":", "_") for label in rates])
    write_lines(tmp_path / "c" / "about.json", [about])
    return tmp_path / "c"


def data_of(page: str) -> dict[str, object]:
    """The JSON inside of a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL)
    assert found
    return dict(json.loads(found[1]))


def test_the_page_holds_every_value_and_loads_nothing(comparison: Path) -> None:
    page = report_page(comparison)
    data = data_of(page)
    methods = data["methods"]
    assert isinstance(methods, list)
    assert [m["name"] for m in methods] == ["full batch", "GAS", "LMC (alpha=0.8)", "IMC"]
    assert [m["light"] for m in methods] == [METHODS[name][1] for name in ("full", "gas", "lmc", "imc")]
    assert methods[1]["curve"][-1] == pytest.approx([20, 10.0, 0.1, 0.99, 0.98], abs=1e-2)
    assert methods[1]["layers"] == [["layer 1", 0.4], ["layer 2", 3e-8]]
    assert methods[1]["errors"][-1] == pytest.approx([10, 0.02, 0.15, 0.3])
    assert dict(methods[0]["memory"])["measured"] == 2.1e6
    assert data["command"] == "lmc compare tiny-like"
    assert ["lr", "0.1", "0.4", "0.3", "0.35"] in data["differing"]  # type: ignore[operator]
    assert ["graph", "tiny-like"] in data["shared"]  # type: ignore[operator]
    assert not re.search(r"(src|href)=.?(https?:|//)|@import|url\(", page)
    assert "default-src 'none'" in page


def test_the_settings_leave_out_what_is_none_and_shorten_numbers(tmp_path: Path) -> None:
    model = {"name": "GCN", "arguments": {"hidden": 8}, "layers.0": {"dropout": 0.5}}
    extra = {"setup_seconds": {"bind": 0.0224502979981}, "data": "1c3e", "format": 3, "betas": [0.9, 1 / 3]}
    shared = dict(data_of(report_page(write_run(tmp_path / "r", "gas", 0.2, model=model, **extra)))["shared"])  # type: ignore[call-overload]
    assert shared["model.arguments.hidden"] == "8"
    assert shared["betas"] == "[0.9, 0.333333]"
    assert not {name.split(".")[0] for name in shared} & {"setup_seconds", "data", "format"}
    assert not [name for name in shared if name.startswith("model.layers")]


def test_one_run_and_a_folder_of_fit_have_a_page(comparison: Path) -> None:
    folder = comparison / "gas"
    (folder / "about.json").unlink()
    (folder / "errors.jsonl").unlink()
    data = data_of(report_page(folder))
    assert data["command"] is None
    assert [m["name"] for m in data["methods"]] == ["GAS"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("limit", "state"), [({}, "unfinished"), ({"patience": 3}, "limited")])
def test_an_unfinished_run_is_called_so(tmp_path: Path, limit: dict[str, int], state: str) -> None:
    data = data_of(report_page(write_run(tmp_path / "r", "gas", 0.2, epochs=0, wanted=7, **limit)))
    (method,) = data["methods"]  # type: ignore[misc]
    assert (method["state"], method["done"], method["wanted"], method["curve"]) == (state, 0, 7, [])


def cut(name: str) -> Callable[[Path], object]:
    return lambda run: (run / name).write_bytes(b'{"a": 1')


@pytest.mark.parametrize(
    "damage",
    [
        cut("config.json"),
        lambda run: (run / "config.json").write_text("{}"),
        lambda run: (run / "config.json").write_text('{"graph": 3, "epochs": "x", "method": [], "metrics": 1}'),
        lambda run: (run / "config.json").unlink(),
        lambda run: (run / "epochs.jsonl").unlink(),
        lambda run: (run / "epochs.jsonl").write_text('{"epoch": 1, "loss": "x", "seconds": 1}\n'),
        lambda run: (run / "about.json").write_text('{"label": 3}\n'),
        lambda run: (run / "errors.jsonl").write_text('{"epoch": 1}\n'),
        lambda run: (run / "config.json").write_text('{"a": ' + "[" * 9000 + "]" * 9000 + "}"),
    ],
)  # fmt: skip
def test_damage_is_one_line_and_exit_2(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    run = write_run(tmp_path / "r", "gas", 0.2)
    damage(run)
    result = CliRunner().invoke(app, ["report", str(run), "--out", str(tmp_path / "o.html")])
    assert (result.exit_code, len(result.output.strip().splitlines())) == (2, 1), result.output
    assert "expected" in result.output
    assert not (tmp_path / "o.html").exists()


def test_only_folders_inside_of_a_comparison_are_read(comparison: Path) -> None:
    write_run(comparison.parent / "outside", "gas", 0.1)
    write_lines(comparison / "about.json", [About("", "c", {}, methods=["../outside"])])
    with pytest.raises(CheckpointError, match="names of folders"):
        report_page(comparison)


@pytest.mark.parametrize("depth", [100, 480, 700, 970])
def test_deeply_nested_settings_are_shown_or_refused(tmp_path: Path, depth: int) -> None:
    run = write_run(tmp_path / "r", "gas", 0.2)
    text = (run / "config.json").read_text()
    (run / "config.json").write_text(text[:-1] + ', "deep": ' + "[" * depth + "]" * depth + "}")
    result = CliRunner().invoke(app, ["report", str(run)])
    assert result.exit_code == 0 if depth < 200 else result.exit_code in (0, 2)
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_the_page_is_in_the_package() -> None:
    assert all((files("lmc.report") / f"page.{kind}").is_file() for kind in ("html", "css", "js"))


def test_the_command_writes_the_page_and_prints_its_path(comparison: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(comparison), "--out", str(tmp_path / "new" / "report.html")])
    assert result.exit_code == 0, result.output
    assert str(tmp_path / "new" / "report.html") in result.output
    assert "<!doctype html>" in (tmp_path / "new" / "report.html").read_text()


# ---- in a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if PROGRAM is None:
        pytest.skip("expected Chromium for the test of the report page (got none): apt-get install chromium")
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


def opened(browser: Browser, folder: Path) -> Browser:
    """The browser with the page of a folder."""
    path = folder / "report.html"
    path.write_text(report_page(folder))
    browser.media()
    browser.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
    browser.open(path)
    return browser


def test_charts_are_drawn_and_toggles_hide_a_method(browser: Browser, comparison: Path) -> None:
    page = opened(browser, comparison)
    assert page.run("document.querySelectorAll('figure svg').length") == 7
    curves = "document.querySelectorAll('#curves polyline.curve:not(.thin)').length"
    assert page.run(curves) == 4 * 4
    heights = page.run("[...document.querySelectorAll('#curves polyline')].map(p => p.getBoundingClientRect().height)")
    assert min(heights) > 20
    page.click("#toggles button[data-method='1']")
    assert page.run("document.querySelector('#toggles button[data-method=\"1\"]').ariaPressed") == "false"
    assert page.run(curves) == 4 * 3
    assert page.run("document.querySelectorAll('#table tbody tr').length") == 3
    assert page.run("document.getElementById('headline').textContent").startswith("IMC is the first to reach")
    assert page.run("document.querySelector('#table tr.winner th').textContent") == "IMC"
    page.click("#toggles button[data-method='1']")
    assert page.run(curves) == 4 * 4
    assert page.problems == []


NAMES = "[...document.querySelectorAll('#table tbody th')].map(cell => cell.textContent)"


def test_the_table_is_sorted_and_names_the_first_to_reach_the_target(browser: Browser, comparison: Path) -> None:
    page = opened(browser, comparison)
    assert page.run(NAMES) == ["full batch", "GAS", "LMC (alpha=0.8)", "IMC"]
    loss = "#table thead th:nth-child(3) button"
    page.click(loss)
    assert page.run(NAMES) == ["GAS", "IMC", "LMC (alpha=0.8)", "full batch"]
    assert page.run("document.querySelector('#table thead th:nth-child(3)').ariaSort") == "ascending"
    page.run("document.activeElement.click()")  # the header kept the focus
    assert page.run(NAMES) == ["full batch", "LMC (alpha=0.8)", "IMC", "GAS"]
    page.click("#table thead th:nth-child(9) button")
    assert page.run(NAMES)[:2] == ["GAS", "IMC"]
    assert page.run(NAMES)[-1] == "full batch"  # never
    assert page.run("document.querySelector('#table tr.winner th').textContent") == "GAS"
    assert page.run("document.getElementById('headline').textContent").startswith("GAS is the first to reach")
    page.run("(i => { i.value = '10'; i.dispatchEvent(new Event('input')); })(document.getElementById('target'))")
    assert "to reach a test score of 10 %" in page.run("document.getElementById('headline').textContent")
    assert "seconds to 10 %" in page.run("document.querySelector('#table thead').textContent")
    assert page.problems == []


def test_values_are_read_by_mouse_and_by_keyboard(browser: Browser, comparison: Path) -> None:
    page = opened(browser, comparison)
    tip = "(t => t.hidden ? '' : t.textContent)(document.querySelector('#curves .tip'))"
    assert page.run(tip) == ""
    page.hover("#curves .plot")
    shown = page.run(tip)
    assert shown.startswith("seconds ")
    assert all(name in shown for name in ("full batch", "GAS", "IMC"))
    page.hover("#curves figure:nth-child(3) .plot")
    assert page.run(tip.replace("'#curves .tip'", "'#curves figure:nth-child(3) .tip'")).startswith("epoch ")
    page.run("document.querySelector('#curves .plot').focus()")
    page.key("ArrowRight")
    spoken = "document.querySelector('#curves figure [aria-live]').textContent"
    first = page.run(spoken)
    page.key("ArrowRight")
    assert "GAS" in first != page.run(spoken)
    page.key("Escape")
    assert page.run(tip) == ""
    unnamed = (
        "[...document.querySelectorAll('button, input, [tabindex=\"0\"]')].filter(e => "
        "!(e.textContent.trim() || e.ariaLabel || e.labels?.length)).length"
    )
    assert page.run(unnamed) == 0
    assert page.problems == []


COLOURS = """(() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const ground = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
  const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (c) => { const f = c.slice(0, 3).map(v => linear(v / 255));
    return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2]; };
  const texts = [...document.querySelectorAll('body *')].filter(e => !['SCRIPT', 'NOSCRIPT'].includes(e.tagName) &&
    [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()));
  return texts.map(e => { const style = getComputedStyle(e);
    const ink = parse(e.namespaceURI.endsWith('svg') ? style.fill : style.color);
    const [a, b] = [light(ink), light(ground(e))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), e.tagName + ' ' + e.textContent.trim().slice(0, 40)]; });
})()"""


def test_light_dark_and_print_have_enough_contrast(browser: Browser, comparison: Path, tmp_path: Path) -> None:
    page = opened(browser, comparison)
    pictures = []
    for scheme in ("light", "dark"):
        page.media(prefers_color_scheme=scheme)
        assert [found for found in page.run(COLOURS) if found[0] < 4.5] == []
        pictures.append(page.screenshot(tmp_path / f"{scheme}.png"))
        stroke = page.run("getComputedStyle(document.querySelector('#curves polyline[data-method=\"3\"]')).stroke")
        expected = METHODS["imc"][1 if scheme == "light" else 2]
        assert stroke == "rgb({}, {}, {})".format(*(int(expected[k : k + 2], 16) for k in (1, 3, 5)))
    assert min(map(len, pictures)) > 50_000
    assert pictures[0] != pictures[1]
    page.media(media="print", prefers_color_scheme="dark")
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.run("getComputedStyle(document.getElementById('toggles')).display") == "none"
    duration = "getComputedStyle(document.querySelector('.swatch')).transitionDuration"
    page.media(prefers_reduced_motion="no-preference")
    assert page.run(duration) != "0s"
    page.media(prefers_reduced_motion="reduce")
    assert page.run(duration) == "0s"
    assert page.problems == []


def test_names_from_a_folder_are_never_run(browser: Browser, tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", HOSTILE, 0.2, graph=HOSTILE, **{HOSTILE: HOSTILE, "\ud800": "\ud800"})
    about = About(HOSTILE, HOSTILE, {HOSTILE: HOSTILE}, {HOSTILE: 1.0}, {HOSTILE: 2.0})
    write_lines(run / "about.json", [about])
    stale = {HOSTILE: 0.1}
    write_lines(run / "errors.jsonl", [ErrorRecord(1, {HOSTILE: 0.1, "__proto__": 0.2}, 0.1, None, stale)])
    result = CliRunner().invoke(app, ["report", str(run)])
    assert result.exit_code == 0, result.output
    browser.open(run / "report.html")
    assert browser.run("window.hacked === undefined")
    assert browser.run("document.querySelectorAll('img, body script').length") == 2  # the data and the page's own
    assert browser.run("document.querySelector('h1').textContent").startswith(HOSTILE)
    assert browser.run("document.querySelectorAll('#curves svg').length") == 4
    assert browser.problems == []


def test_an_unfinished_run_says_so_on_its_page(browser: Browser, tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", "gas", 0.2, epochs=0, wanted=7)
    page = opened(browser, run)
    assert page.run("getComputedStyle(document.getElementById('toggles')).display") == "none"  # there is one method
    assert "unfinished: 0 of 7 epochs" in page.run("document.getElementById('notes').textContent")
    assert page.run("document.getElementById('headline').textContent") == "No epoch is recorded yet."
    assert page.problems == []


def test_the_label_of_two_runs_may_be_the_same(comparison: Path) -> None:
    for name in ("gas", "imc"):
        about = dataclasses.replace(About("x", "c", {}))
        write_lines(comparison / name / "about.json", [about])
    methods = data_of(report_page(comparison))["methods"]
    assert {m["label"] for m in methods} == {"full", "gas", "lmc_alpha=0.8", "imc"}  # type: ignore[attr-defined]
