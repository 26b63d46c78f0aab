"""The code of the README runs, and the settings and links of the documentation exist."""

import json
import re
import subprocess
import sys
from pathlib import Path

from couce.method import MethodSettings
from couce.train.settings import TrainSettings, resolve

ROOT = Path(__file__).parent.parent


def blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)


def test_the_readme_runs_from_top_to_bottom() -> None:
    code = "\n".join(blocks(ROOT / "README.md"))
    assert code.count("import") > 4
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "'orth'" in done.stdout
    assert "'MAP@R'" in done.stdout


def test_every_setting_is_documented_with_its_default() -> None:
    """The tables of docs/method.md have all settings of the method, and no others."""
    text = (ROOT / "docs" / "method.md").read_text()
    documented = dict(re.findall(r"^\| `(\w+\.\w+)` \| `([^`]*)` \|", text, flags=re.MULTILINE))
    settings = MethodSettings().model_dump()
    actual = {
        f"{group}.{name}": str(value).lower() if isinstance(value, bool) else str(value)
        for group, values in settings.items()
        for name, value in values.items()
    }
    assert documented == actual


def test_what_couce_plus_changes_is_documented() -> None:
    text = (ROOT / "docs" / "method.md").read_text().split("## `couce-plus`")[1]
    rows = re.findall(r"^\| (\w+\.\w+) \| (\S+) \| (\S+) \|", text, flags=re.MULTILINE)
    paper, plus = (resolve("cub", method=name).model_dump() for name in ("couce", "couce-plus"))
    changed = {
        f"{group}.{name}": (str(value), str(plus[group][name]))
        for group in MethodSettings.model_fields
        for name, value in paper[group].items()
        if value != plus[group][name]
    }
    assert {name: (before, after) for name, before, after in rows} == changed
    own = TrainSettings.model_fields.keys() - MethodSettings.model_fields.keys()
    assert all(paper[name] == plus[name] for name in own)  # the training is the same


def test_every_setting_of_training_is_documented_with_its_default() -> None:
    text = (ROOT / "docs" / "training.md").read_text()
    documented = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", text, flags=re.MULTILINE))
    own = TrainSettings.model_fields.keys() - MethodSettings.model_fields.keys()
    values = TrainSettings().model_dump()
    assert documented == {name: json.dumps(values[name]).strip('"') for name in own}


def test_every_included_file_is_marked_as_pymdownx_expects() -> None:
    """Otherwise the site shows the marker instead of the example; the formatter can break it."""
    pages = {page.name: page.read_text() for page in (ROOT / "docs").glob("*.md")}
    included = {
        name: re.findall(r'^--8<-- "(examples/\w+\.py)"$', text, flags=re.MULTILINE)
        for name, text in pages.items()
    }
    plugins = ["losses", "backbone", "dataset"]
    assert included["extending.md"] == [f"examples/my_{each}.py" for each in plugins]
    assert included["api.md"] == ["examples/road.py"]
    assert not any(re.search(r"^--8 <", text, flags=re.MULTILINE) for text in pages.values())


def test_links_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#]+)", prose):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"
