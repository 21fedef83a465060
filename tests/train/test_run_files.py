"""What a run folder survives: signals, divided epochs, damage, missing files, a second process, errors of the disk."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

import lmc
from helpers import make, parts_of, random_graph
from lmc.cli.console import reported_errors
from lmc.errors import CheckpointError, ConfigError, Interrupted, RunWarning
from lmc.files import locked
from lmc.methods import CMC, GAS, IMC, DropEdge, GraphSAINT, LMC4Conv, Method
from lmc.results import ErrorRecord, append_lines, read_errors
from lmc.stores import Placement
from lmc.train import Callback, Training, checkpoint, manifest, run_folder, sealed, stop_on_interrupt
from lmc.train.run_folder import Settings, interval

State = dict[str, Tensor]
EPOCHS = 4
STEPS = 4
"""Steps in an epoch."""


class At(Callback):
    """Calls a function after the n-th step."""

    def __init__(self, step: int, action: Callable[[Training], object]) -> None:
        self.left, self.action = step, action

    def on_step(self, training: Training) -> None:
        self.left -= 1
        if self.left == 0:
            self.action(training)


def fit(folder: Path | None, method: Method | None = None, model: Any = None, **options: Any) -> lmc.RunRecord:
    g = random_graph()
    model = model or lmc.models.GCN(g.num_features, 4, g.num_classes, dropout=0.5, norm="batch")
    given = {"epochs": EPOCHS, "seed": 1, "run_dir": folder, "placement": Placement("cpu"), "parts": parts_of(g)}
    if not isinstance(method or GAS(), GAS | CMC | LMC4Conv | DropEdge):
        given.pop("parts")
    return lmc.fit(g, model, method or GAS(clusters_per_batch=1), **given | options)


def resume(folder: Path, *args: Any, **options: Any) -> lmc.RunRecord:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RunWarning)
        return fit(folder, *args, resume=True, **options)


def state(folder: Path) -> State:
    return sealed.read_sealed(folder / checkpoint.FILE)[0]


def same(a: Path, b: Path) -> bool:
    one, other = state(a), state(b)
    losses = [[(e.epoch, e.loss, e.scores) for e in lmc.results.read_run(f).epochs] for f in (a, b)]
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one) and losses[0] == losses[1]


def refusal(action: Callable[[], object]) -> str:
    """The message of a refusal, which has one line."""
    with pytest.raises(CheckpointError) as raised:
        action()
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "undisturbed"
    fit(folder, checkpoint_every="1000h")
    return folder


@pytest.fixture
def half(tmp_path: Path) -> Path:
    """A run of two of the four epochs, with two checkpoints."""
    fit(tmp_path / "half", epochs=2, checkpoint_every="1epochs")
    return tmp_path / "half"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_finishes_the_step_and_saves(signum: int, tmp_path: Path, undisturbed: Path) -> None:
    before = signal.getsignal(signum)
    stop = At(STEPS + 2, lambda _: os.kill(os.getpid(), signum))
    with pytest.raises(Interrupted, match="epoch 1, step 2; saved in") as raised:
        fit(tmp_path, callbacks=[stop])
    assert signal.getsignal(signum) == before
    with pytest.raises(typer.Exit) as ended, reported_errors():
        raise raised.value
    assert ended.value.exit_code == 128 + signum
    resume(tmp_path, callbacks=[stop])
    assert same(tmp_path, undisturbed)


def test_only_a_second_ctrl_c_interrupts_at_once() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it for jobs in the background
    try:
        with stop_on_interrupt() as stop:
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            assert stop()
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_signals_that_are_ignored_or_handled_by_the_program_stay() -> None:
    received: list[int] = []
    hup = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    usr1 = signal.signal(signal.SIGUSR1, lambda number, _: received.append(number))
    try:
        with stop_on_interrupt() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGUSR1)
            assert not stop()
        assert received == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGHUP, hup)
        signal.signal(signal.SIGUSR1, usr1)


@pytest.mark.parametrize(
    ("text", "found"),
    [("30s", (30, "s")), ("10min", (600, "s")), ("1.5h", (5400, "s")), ("500steps", (500, "step")),
     ("1 epoch", (1, "epoch")), ("auto", (30, "auto"))],
)  # fmt: skip
def test_the_interval_of_checkpoints_has_a_unit(text: str, found: tuple[float, str]) -> None:
    assert interval(text) == found


@pytest.mark.parametrize("text", ["", "10", "min", "-1s", "0steps", "1.5steps", "10 parsecs", "1e3s"])
def test_other_intervals_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"such as 30s, 10min, 2h, 500steps, 1epochs or auto \(got"):
        Settings(checkpoint_every=text)


@pytest.mark.parametrize(
    ("every", "positions"),
    [("3steps", [(0, 0), (0, 3), (1, 2), (2, 0)]), ("0s", [(k // STEPS, k % STEPS) for k in range(2 * STEPS + 1)]),
     ("2epochs", [(0, 0), (2, 0)]), ("1h", [(0, 0), (2, 0)])],
)  # fmt: skip
def test_checkpoints_fall_within_epochs(
    every: str, positions: list[tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, save = [], checkpoint.save
    monkeypatch.setattr(
        checkpoint, "save", lambda folder, run, opt, at: (saved.append((at.epoch, at.step)), save(folder, run, opt, at))
    )
    fit(tmp_path, epochs=2, checkpoint_every=every)
    assert list(dict.fromkeys(saved)) == positions


def test_automatic_checkpoints_take_a_twentieth_of_the_time_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(run_folder.time, "monotonic", lambda: now)

    def slow(*_: object) -> None:
        nonlocal now
        now += 10

    monkeypatch.setattr(manifest, "save", slow)
    (tmp_path / "epochs.jsonl").touch()
    folder = run_folder.RunFolder(tmp_path, None, None, "")  # type: ignore[arg-type]
    now = 31
    assert folder.due()
    folder.save(checkpoint.Position())
    now += 199
    assert not folder.due()
    now += 1
    assert folder.due()


METHODS = {
    "gas": lambda: GAS(clusters_per_batch=1),
    "dropedge": lambda: DropEdge(CMC(clusters_per_batch=1), p=0.3),
    "saint": lambda: GraphSAINT(),
    "imc": lambda: IMC(),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_divided_epoch_changes_no_bit(name: str, tmp_path: Path) -> None:
    def explode(_: Training) -> None:
        raise RuntimeError("stopped here")

    method = METHODS[name]()
    fit(tmp_path / "whole", method, epochs=2, checkpoint_every="1000h")
    fit(tmp_path / "divided", method, epochs=2, checkpoint_every="1steps")
    assert same(tmp_path / "divided", tmp_path / "whole")
    with pytest.raises(RuntimeError, match="stopped here"):
        fit(tmp_path / "resumed", method, epochs=2, callbacks=[At(2, explode)])
    resume(tmp_path / "resumed", method, epochs=2)
    assert same(tmp_path / "resumed", tmp_path / "whole")


class Noisy(nn.Module):
    """A network whose noise comes from torch's global generator."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = GCNConv(width, 4), GCNConv(4, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.first(x, edge_index).relu()
        return self.second(h + torch.randn_like(h) if self.training else h, edge_index)


def test_a_wrapped_network_resumes_with_its_draws_from_the_global_generator(tmp_path: Path) -> None:
    g = random_graph()

    def explode(_: Training) -> None:
        raise RuntimeError("stopped here")

    def train(folder: Path, *callbacks: Callback, resume: bool = False) -> None:
        torch.manual_seed(3)
        fit(folder, model=lmc.wrap(Noisy(g.num_features, 4)), epochs=2, callbacks=callbacks, resume=resume)

    train(tmp_path / "whole")
    with pytest.raises(RuntimeError, match="stopped here"):
        train(tmp_path / "resumed", At(4, explode))
    train(tmp_path / "resumed", resume=True)
    assert same(tmp_path / "resumed", tmp_path / "whole")


def test_a_folder_is_used_by_one_run_at_a_time(half: Path) -> None:
    def intrude(_: Training) -> None:
        said = refusal(lambda: resume(half))
        assert f"(got {half}, in use by process {os.getpid()}): wait until it has ended" in said

    resume(half, callbacks=[At(1, intrude)])
    resume(half, epochs=EPOCHS + 1)


def test_a_killed_process_releases_the_lock(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal, sys; from lmc.files import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -signal.SIGKILL
    assert (tmp_path / ".lock").read_text().isdigit()
    with locked(tmp_path):
        pass


def test_temporary_files_of_a_crash_are_removed_and_others_stay(half: Path) -> None:
    stale, other = half / f".checkpoint.safetensors.{'0f' * 16}.part", half / ".notes.part"
    for file in (stale, other):
        file.write_bytes(b"0")
    resume(half)
    assert (stale.exists(), other.exists()) == (False, True)


def test_any_changed_byte_of_the_newest_checkpoint_is_found_and_the_one_before_it_used(half: Path) -> None:
    g = random_graph()
    model = lmc.models.GCN(g.num_features, 4, g.num_classes, dropout=0.5, norm="batch", seed=5)
    run = GAS(clusters_per_batch=1).bind(g, model, parts_of(g), device="cpu", seed=1)
    whole, newest = (half / checkpoint.FILE).read_bytes(), half / checkpoint.FILE
    previous = half / checkpoint.PREVIOUS
    assert b'"generator"' in whole or b"run.generator" in whole
    for k in range(40):
        at = k * (len(whole) - 1) // 39
        newest.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << k % 8)]) + whole[at + 1 :])
        with pytest.raises(sealed.Damaged):
            sealed.read_sealed(newest)
    for header in (b"", b"\xff" * 20, b"\2" + b"\0" * 7 + b"[]", b"\3" + b"\0" * 7 + b'{"a', whole[:60]):
        newest.write_bytes(header)
        with pytest.raises(sealed.Damaged):
            sealed.matrices_in(newest)
    newest.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    copy, optimizer = previous.read_bytes(), torch.optim.Adam(model.parameters())
    previous.write_bytes(copy[:-1])
    before = [p.detach().clone() for p in model.parameters()]
    assert "is damaged" in refusal(lambda: checkpoint.load(half, run, optimizer))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    previous.write_bytes(copy)
    with pytest.warns(RunWarning, match=f"{newest} is damaged .* continuing from the checkpoint before it"):
        position = checkpoint.load(half, run, optimizer)
    assert position is not None
    assert position.epoch == 1
    assert newest.read_bytes() == copy
    assert (half / checkpoint.DAMAGED).stat().st_size == len(whole)


@pytest.mark.parametrize("cut", [0, 7, 100, -1])
def test_a_truncated_checkpoint_is_trained_again_from_the_one_before_it(
    cut: int, half: Path, undisturbed: Path
) -> None:
    newest = half / checkpoint.FILE
    newest.write_bytes(newest.read_bytes()[:cut])
    resume(half)
    assert same(half, undisturbed)


def test_a_crash_between_two_renames_leaves_the_checkpoint_before(half: Path, undisturbed: Path) -> None:
    (half / checkpoint.FILE).unlink()
    with pytest.warns(RunWarning, match="is missing: continuing from the checkpoint before it"):
        fit(half, resume=True)
    assert same(half, undisturbed)


def test_the_best_parameters_have_a_digest_too(half: Path) -> None:
    path = half / run_folder.BEST
    tensors, metadata = sealed.read_sealed(path)
    assert "layers.0.lin.weight" in tensors
    assert metadata["epoch"] in "12"
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 16]) + whole[-2:])
    with pytest.raises(sealed.Damaged):
        sealed.read_sealed(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p, o: p.__setattr__("step", STEPS + 1), "a position of this run"),
        (lambda p, o: p.__setattr__("epoch", True), "a position of this run"),
        (lambda p, o: p.__setattr__("loss", float("nan")), "a position of this run"),
        (lambda p, o: o.state[next(iter(o.state))].__setitem__("exp_avg", torch.zeros(2, 2)), "the optimiser that"),
        (lambda p, o: o.param_groups.append({"params": []}), "the optimiser that"),
    ],
)
def test_position_and_optimiser_are_checked_before_anything_is_loaded(
    change: Callable[[checkpoint.Position, torch.optim.Optimizer], None], message: str, tmp_path: Path
) -> None:
    g = random_graph()
    model = make("gcn", g)
    run = GAS(clusters_per_batch=1).bind(g, model, parts_of(g), device="cpu")
    optimizer, position = torch.optim.Adam(model.parameters()), checkpoint.Position(1)
    run.step(next(iter(run.batches())), optimizer)
    change(position, optimizer)
    checkpoint.save(tmp_path, run, optimizer, position)
    other = make("gcn", g, seed=4)
    before = {k: v.clone() for k, v in other.state_dict().items()}
    again = GAS(clusters_per_batch=1).bind(g, other, parts_of(g), device="cpu")
    assert message in refusal(lambda: checkpoint.load(tmp_path, again, torch.optim.Adam(other.parameters())))
    assert all(torch.equal(v, before[k]) for k, v in other.state_dict().items())


def test_a_generator_of_another_kind_is_refused(half: Path) -> None:
    g = random_graph()
    run = GAS(clusters_per_batch=1).bind(g, make("gcn", g), parts_of(g), device="cpu")
    for wrong in (torch.zeros(3, dtype=torch.uint8), torch.full_like(run.generator.get_state(), 255)):
        said = refusal(lambda wrong=wrong: run.load_state_dict(run.state_dict() | {"generator": wrong}))
        assert "generator" in said
        assert said.endswith(("bind the method to this graph again", "pass what run.state_dict() gave"))


def lines(*records: dict[str, object]) -> bytes:
    return "".join(json.dumps(r) + "\n" for r in records).encode()


ONE, TWO = {"epoch": 1, "loss": 1.0, "seconds": 0.1}, {"epoch": 2, "loss": 1.0, "seconds": 0.2}
DAMAGES = {
    "config.json": [b"", b"{", b"\xef\xbb\xbf{}", b"\0" * 20, b"\xff\xfe{}", b"[]", b"7", b'{"format": NaN}',
                    b"[" * 99999, b"{}"],
    "epochs.jsonl": [lines(ONE, ONE, TWO), lines(TWO), lines(TWO, ONE), lines(ONE | {"epoch": "1"}, TWO),
                     lines(ONE | {"loss": None}, TWO), lines(ONE | {"loss": float("nan")}, TWO),
                     lines(ONE, TWO).replace(b"1.0", b"1e999"), lines(ONE | {"scores": {"val": "x"}}, TWO),
                     lines(ONE | {"scores": [1]}, TWO), lines(ONE | {"more": 1}, TWO), lines({"epoch": 1}, TWO),
                     b"\xef\xbb\xbf" + lines(ONE, TWO), lines(ONE, TWO).replace(b"loss", b"lo\xffs"),
                     lines(ONE) + b"\0\0\n" + lines(TWO), b"\n", b"1\n2\n", lines(ONE, TWO)[20:]],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content"), [(n, c) for n, contents in DAMAGES.items() for c in contents], ids=range(27)
)
def test_a_damaged_text_file_is_refused_and_nothing_changes(name: str, content: bytes, half: Path) -> None:
    (half / name).write_bytes(content)
    before = {file: file.read_bytes() for file in half.iterdir() if file.name != ".lock"}
    said = refusal(lambda: fit(half, resume=True))
    assert str(half) in said
    assert {file: file.read_bytes() for file in half.iterdir() if file.name != ".lock"} == before


@pytest.mark.parametrize("key", ["loss", "seconds", "scores"])
def test_a_record_that_was_edited_into_another_valid_one_is_refused(key: str, half: Path) -> None:
    """The checkpoint contains a digest of the records: an edited score would choose another best epoch."""
    first, *others = map(json.loads, (half / "epochs.jsonl").read_text().splitlines())
    edited = first | {key: None if key == "scores" else first[key] + 1}
    (half / "epochs.jsonl").write_bytes(lines(edited, *others))
    assert "the file was changed" in refusal(lambda: fit(half, resume=True))


@pytest.mark.parametrize("lost", [1, 40, 130])
def test_a_last_record_that_was_cut_off_is_trained_again(lost: int, half: Path, undisturbed: Path) -> None:
    log = half / "epochs.jsonl"
    log.write_bytes(log.read_bytes()[:-lost])
    resume(half)
    assert same(half, undisturbed)


def test_files_without_a_configuration_are_refused(half: Path) -> None:
    (half / "config.json").unlink()
    assert "expected a config.json" in refusal(lambda: fit(half, resume=True))
    with pytest.raises(ConfigError, match="which holds a run"):
        fit(half)


def test_records_without_a_checkpoint_are_refused_and_kept(half: Path) -> None:
    for name in (checkpoint.FILE, checkpoint.PREVIOUS):
        (half / name).unlink()
    assert "(got 2 recorded epochs without one): restore" in refusal(lambda: fit(half, resume=True))
    assert len((half / "epochs.jsonl").read_text().splitlines()) == 2


def test_a_run_that_was_killed_before_its_first_checkpoint_starts(half: Path, undisturbed: Path) -> None:
    for file in half.iterdir():
        if file.name != "config.json":
            file.unlink()
    (half / "epochs.jsonl").touch()
    fit(half, resume=True)
    assert same(half, undisturbed)


def test_records_are_appended_after_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "errors.jsonl"
    records = [ErrorRecord(k, {"layer 1": 0.5, "layer 2": float("nan")}, 0.5) for k in (1, 2, 3)]
    append_lines(path, records[:2])
    assert b"NaN" not in path.read_bytes()
    path.write_bytes(path.read_bytes()[:-9])
    assert [r.epoch for r in read_errors(path)] == [1]
    append_lines(path, records[2:])
    assert [r.epoch for r in read_errors(path)] == [1, 3]
    path.write_bytes(path.read_bytes()[:-1])  # the record is whole, and only its line is not
    append_lines(path, records[1:2])
    assert [r.epoch for r in read_errors(path)] == [1, 3, 2]
    append_lines(path, [ErrorRecord(4, {"layer 1": 0.5}, 0.5)])
    assert "the same layers in every line" in refusal(lambda: read_errors(path))


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_an_error_of_the_disk_is_one_line_and_the_last_checkpoint_stays(
    call: str, code: int, tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        fault = At(STEPS + 1, lambda _: patched.setattr(os, call, fail))
        said = refusal(lambda: fit(tmp_path, checkpoint_every="1steps", callbacks=[fault]))
    assert f"{os.strerror(code)}): repair that, then resume from the checkpoint of epoch 1, step 0" in said
    assert not list(tmp_path.glob(".*.part"))
    resume(tmp_path)
    assert same(tmp_path, undisturbed)


def test_a_folder_that_is_removed_in_mid_run_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    said = refusal(lambda: fit(folder, callbacks=[At(STEPS + 1, lambda _: shutil.rmtree(folder))]))
    assert "No such file or directory" in said


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "expected a folder that can be written" in refusal(lambda: fit(tmp_path / "file" / "r"))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the names of open files are read from /proc")
def test_records_reach_the_disk_before_their_checkpoint_and_names_after_it(
    half: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def fsync(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).suffix or "folder")

    with monkeypatch.context() as patched:
        move = os.replace
        patched.setattr(os, "fsync", fsync)
        patched.setattr(os, "replace", lambda a, b: (synced.append(f"to {Path(b).name}"), move(a, b)))
        resume(half, epochs=3, eval_every=0)
    at = synced.index("to checkpoint.safetensors")
    rotated = "to checkpoint.previous.safetensors"
    assert synced[at - 3 : at + 2] == [".jsonl", ".part", rotated, "to checkpoint.safetensors", "folder"]


def test_another_number_of_threads_is_recorded_and_reported(half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads((half / "config.json").read_text())["threads"] == 1
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    with pytest.warns(RunWarning, match="used 1 threads, and this process uses 7"):
        fit(half, resume=True)
