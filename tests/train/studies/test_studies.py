"""Real studies: runs that are kept, and their summaries."""

import json
import re
import shlex
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from couce import plugins
from couce.backbones import BACKBONES
from couce.data.demo import example_of, read_plan, write_demo
from couce.errors import CouceError
from couce.losses import LOSSES, build_loss
from couce.train.figures.confounding import analyse, variances
from couce.train.figures.runs import open_run
from couce.train.settings import METHODS, parse_assignments, resolve
from couce.train.studies.ablation import METRICS, ablation_section
from couce.train.studies.audits import AUDITED
from couce.train.studies.runs import Spread, run_all, study_runs

Call = Callable[..., tuple[int, str, str]]

EXAMPLES = Path(__file__).parents[3] / "examples"


SMALL = ["dim=16", "batch_classes=6", "batch_images=2", "epochs=1"]


@pytest.fixture
def study(call: Call) -> Call:
    """Runs `couce analyze ablation demo` in this process. Its runs are separate processes."""

    def run(pictures: Path, out: Path, *more: str) -> tuple[int, str, str]:
        places = ["--data", pictures, "--out", out, "--report", out / "report"]
        chosen = [f"--set={value}" for value in SMALL]
        return call("analyze", "ablation", "demo", *places, *chosen, *more)

    return run


def test_a_study_says_what_was_measured() -> None:
    spread = dict.fromkeys(METRICS, Spread(0.5, 0.1))
    for judged in ("test half", "held-out classes"):
        about = ablation_section({"base": spread}, 3, [], judged).about
        assert about.startswith(f"{judged.capitalize()}, last epoch, in percent: mean")
        assert f"by the {judged} would flatter" in about


def test_a_study_audits_its_runs(
    tmp_path: Path, study: Call, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the plug-in below adds to this process is taken back at the end.
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setitem(LOSSES, "my-softmax", LOSSES["proxy-an"])
    pictures = write_demo(tmp_path / "demo", per_class=4)
    out = tmp_path / "studies"
    arguments = ["--methods", "base,bgaugment", "--seeds", "1", "--jobs", "2"]
    code, said, complained = study(pictures, out, *arguments, "--audit")
    assert code == 0, said + complained
    assert "Audit of backgrounds" in said
    content = json.loads((out / "ablation.json").read_text())
    for run in content["runs"]:
        assert set(run["audit"]) == set(AUDITED)
        # As `couce audit` finds it.
        command = ["audit", out / run["name"], "demo", "--data", pictures, "--out", tmp_path / "a"]
        for protocol in ("queries", "background-bias"):
            assert call(*command, "--protocol", protocol)[0] == 0
        queries = json.loads((tmp_path / "a" / "audit.json").read_text())["values"]["models"]
        bias = json.loads((tmp_path / "a" / "background-bias.json").read_text())["values"]["models"]
        (one,), (other,) = queries.values(), bias.values()
        assert run["audit"]["own minus other background"] == pytest.approx(one["gap"]["value"])
        assert run["audit"]["background alone"] == pytest.approx(one["alone"]["value"])
        mean = statistics.fmean(each["MAP@R"] for each in other["drawings"])
        assert run["audit"]["MAP@R, replaced"] == pytest.approx(mean)
    # A second call reads the kept audits.
    kept = out / content["runs"][0]["name"] / "audit.json"
    changed = json.loads(kept.read_text())
    changed["audit"]["background alone"] = 0.75
    kept.write_text(json.dumps(changed))
    code, said, complained = study(pictures, out, *arguments, "--audit")
    rows = json.loads((out / "ablation.json").read_text())["rows"]
    assert rows["base"]["background alone"]["mean"] == 0.75
    # A run that needs a plug-in is audited, too.
    plugged = ["--plugin", str(EXAMPLES / "my_losses.py"), "--loss", "my-softmax", "--audit"]
    once = ["--methods", "base", "--seeds", "1", *plugged]
    code, said, complained = study(pictures, tmp_path / "plugged", *once)
    assert code == 0, said + complained
    assert "1/1 audited" in said + complained
    code, said, complained = study(pictures, out, *arguments, "--masks", str(tmp_path))
    assert code == 2
    assert "add --audit" in complained


def test_a_study_from_start_to_table(tmp_path: Path, study: Call) -> None:
    pictures = write_demo(tmp_path / "demo", per_class=3)
    out = tmp_path / "studies"
    arguments = ["--methods", "base,odba", "--seeds", "2", "--over", "lr=0.001", "--jobs", "2"]
    code, said, complained = study(pictures, out, *arguments)
    assert code == 0, said + complained
    content = json.loads((out / "ablation-lr.json").read_text())
    assert [(run["method"], run["seed"]) for run in content["runs"]] == [
        ("base", 0),
        ("odba", 0),
        ("base", 1),
        ("odba", 1),
    ]
    assert list(content["rows"]) == ["lr=0.001 base", "lr=0.001 odba"]
    found = [run["last"]["metrics"]["R@1"] for run in content["runs"] if run["method"] == "base"]
    row = content["rows"]["lr=0.001 base"]["R@1"]
    assert row["mean"] == pytest.approx(sum(found) / 2)
    assert row["deviation"] == pytest.approx(statistics.stdev(found))
    assert f"{100 * row['mean']:.1f}±" in said
    section = json.loads((out / "report" / "ablation-lr.json").read_text())
    assert section["values"]["rows"] == content["rows"]
    assert (out / "report" / "ablation-lr.png").read_bytes().startswith(b"\x89PNG")

    # The second time, only the interrupted run continues. Nothing else is trained again.
    logs = {path: path.stat().st_mtime_ns for path in out.glob("*.log")}
    assert len(logs) == 4
    interrupted = out / content["runs"][0]["name"]
    (interrupted / "result.json").write_text('{"last": ')  # incomplete, as after a full disk
    code, _, complained = study(pictures, out, *arguments)
    assert code == 0, complained
    changed = [path for path, when in logs.items() if path.stat().st_mtime_ns != when]
    assert [path.name for path in changed] == [f"{interrupted.name}.log"]
    assert json.loads((out / "ablation-lr.json").read_text())["rows"] == content["rows"]

    # The analysis of the embeddings of one run.
    made_of = analyse(open_run(out / content["runs"][1]["name"]))
    assert set(made_of.train.shares) == {"class", "background", "light"}
    assert all(0 <= share <= 1 for share in made_of.test.shares.values())
    assert made_of.gate is not None
    assert 0 <= made_of.gate[0] <= made_of.gate[2] <= 1
    assert made_of.gradients["dml"] == 1
    assert set(made_of.gradients) == {"dml", "orth"}


def test_held_out_classes_are_no_part_of_the_analysis(tmp_path: Path, study: Call) -> None:
    pictures = write_demo(tmp_path / "demo", per_class=3)
    code, _, complained = study(
        pictures, tmp_path / "out", "--methods=odba", "--seeds=1", "--validate-classes=0.2"
    )
    assert code == 0, complained
    (run,) = (path for path in (tmp_path / "out").iterdir() if (path / "last.pt").exists())
    assert analyse(open_run(run)).gate is not None


def test_a_failed_run_says_why(tmp_path: Path, study: Call) -> None:
    code, _, said = study(tmp_path / "absent", tmp_path / "out", "--methods=base", "--seeds=1")
    assert code == 2
    assert "the run base-seed0-" in said
    assert "no data set at" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--methods", "bass"], "did you mean 'base'"),
        (["--methods", "base,base"], "is named twice"),
        (["--over", "lr"], "key=a,b"),
    ],
)
def test_wrong_calls_are_sentences(
    arguments: list[str], words: str, tmp_path: Path, study: Call
) -> None:
    code, _, said = study(tmp_path, tmp_path / "out", *arguments)
    assert code == 2
    assert words in said


def test_every_documented_ablation_can_be_trained() -> None:
    """Every command in the table of docs/figures.md has only settings that are accepted."""
    text = (Path(__file__).parents[3] / "docs" / "figures.md").read_text()
    commands = re.findall(r"`(couce analyze ablation [^`]*)`", text)
    keys = set()
    for command in commands:
        words = shlex.split(command)[3:]
        options = dict(zip(words[1::2], words[2::2], strict=True))
        methods = options.get("--methods", "base,odba,msrci,odba+msrci,couce").split(",")
        over = [options["--over"]] if "--over" in options else []
        keys |= {each.partition("=")[0] for each in over}
        points = study_runs([words[0]], [], methods, 1, over)
        found = [
            resolve(
                words[0],
                method=run.method,
                assignments=parse_assignments(
                    s.removeprefix("--set=") for s in run.settings if "--set=" in s
                ),
            )
            for run in points
        ]
        assert len({each.to_toml() for each in found}) == len(points)  # no two are the same
        for each in found:
            build_loss(each.loss, 2, 8)
            assert each.split is None or each.split in BACKBONES[each.backbone].points
    assert keys == {
        *("backbone", "loss", "split", "odba.capacity", "odba.threshold", "odba.momentum"),
        *("odba.gating", "odba.detach", "odba.mode", "odba.weight", "odba.branches"),
        *("msrci.bands", "msrci.strongest", "msrci.invariance", "msrci.stop_gradient"),
        *("msrci.schedule", "msrci.temperature", "msrci.weight", "covariance.weight"),
    }


@pytest.mark.parametrize(
    ("settings", "over", "words"),
    [
        ([], ["seed=7,8"], "--seeds"),
        (["--method", "couce-plus"], [], "--methods"),
        (["--seed=7"], [], "--seeds"),
        (["--epochs", "2"], ["epochs=1,2"], "epochs is given twice"),
        (["--set=dim=8"], ["dim=8,16"], "dim is given twice"),
    ],
)
def test_what_is_given_twice_is_refused(settings: list[str], over: list[str], words: str) -> None:
    with pytest.raises(CouceError, match=words):
        study_runs(["demo"], settings, ["base"], 1, over)


def test_other_arguments_are_another_run() -> None:
    one = study_runs(["demo"], ["--epochs=1"], ["base"], 1, [])
    other = study_runs(["demo"], ["--epochs=2"], ["base"], 1, [])
    assert one[0].name != other[0].name
    assert study_runs(["demo"], ["--epochs=1"], ["base"], 1, []) == one


def test_other_content_of_the_same_name_is_another_run(tmp_path: Path) -> None:
    config, photos = tmp_path / "my.toml", tmp_path / "photos"
    config.write_text("epochs = 1")
    photos.mkdir()

    def name() -> str:
        return study_runs([str(photos)], ["--config", str(config)], ["base"], 1, [])[0].name

    names = [name(), name()]
    assert names[0] == names[1]
    config.write_text("epochs = 2")
    names.append(name())
    (photos / "one.png").touch()
    names.append(name())
    assert len(set(names)) == 3


def test_a_name_that_stands_for_something_else_is_another_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = study_runs(["demo"], [], ["base", "couce-plus"], 1, [])
    changed = {**METHODS["couce-plus"], "odba": {"weight": 0.0}}
    monkeypatch.setitem(METHODS, "couce-plus", changed)
    after = study_runs(["demo"], [], ["base", "couce-plus"], 1, [])
    assert [a.name == b.name for a, b in zip(before, after, strict=True)] == [True, False]


def test_a_run_that_cannot_start(tmp_path: Path) -> None:
    (run,) = study_runs(["absent"], [], ["base"], 1, [])
    with pytest.raises(CouceError, match=r"the run base-seed0-\w+ failed: couce: unknown data set"):
        list(run_all([run], tmp_path, 1))


def test_spread_of_one_value_is_none() -> None:
    assert Spread.of([0.25]) == (0.25, 0.0)


def test_variance_between_groups_against_plain_loops() -> None:
    rng = np.random.default_rng(0)
    rows, groups = rng.standard_normal((30, 4)).astype(np.float32), rng.integers(0, 5, 30)
    between, total = variances(rows, groups)
    for c in range(4):
        column = rows[:, c].astype(float)
        expected = sum(
            np.sum(groups == g) * (column[groups == g].mean() - column.mean()) ** 2
            for g in np.unique(groups)
        )
        assert between[c] == pytest.approx(expected / 30)
        assert total[c] == pytest.approx(np.mean((column - column.mean()) ** 2))


def test_every_file_of_the_demo_knows_what_it_shows(tmp_path: Path) -> None:
    folder = write_demo(tmp_path / "demo", per_class=2)
    plan = read_plan(folder)
    for path in folder.rglob("*.png"):
        example = example_of(path, plan)
        assert (example.half, example.label) == (path.parts[-3], path.parts[-2])
    with pytest.raises(CouceError, match="is not a demo set"):
        read_plan(tmp_path)
