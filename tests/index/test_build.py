"""`couce index build` and the other commands of `couce index`, run through the command line."""

import csv
import json
import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from couce.embedder import Embedder
from couce.index import open_index
from couce.index.base import ID_DIGITS
from couce.index.local.index import LocalIndex

from .conftest import Couce, numbered, unit, write_model, write_picture

STRANGE = [
    'it\'s "quoted".png',
    "new\nline.png",
    "emoji 🐦.png",
    "percent %20 $HOME `x`; DROP TABLE items;.png",
    unicodedata.normalize("NFD", "é") + ".png",
    unicodedata.normalize("NFC", "é") + ".png",
    os.fsdecode(b"not utf-8 \xff\xfe.png"),
    " leading and trailing .png",
    "--option.png",
    "[bold]markup.png",
]


def paths(folder: Path) -> dict[str, tuple[str, ...]]:
    with open_index(folder) as index:
        return {item.id: item.paths for item in index.every_item()}


def test_the_road_of_a_gallery(tmp_path: Path, model: Path, gallery: Path, couce: Couce) -> None:
    write_picture(gallery / "class-1" / "twin.png", 0)  # the bytes of class-0/0.png
    (gallery / "class-2" / "broken.png").write_bytes(b"no picture")
    said = couce("build", "gallery")
    assert "14 images: 12 added" in said
    assert "not read: " in said
    assert "broken.png: the image is not an image in a known format" in said
    assert said.splitlines()[-1] == "Next: couce serve, or couce index search IMAGE"
    embedder = Embedder(model)
    with open_index(tmp_path / "index") as index:
        assert index.model_hash == embedder.hash
        assert index.labels() == {"class-0": 4, "class-1": 4, "class-2": 4}
        for item in index.every_item():
            (block,) = index.vectors([item.id])
            for path in item.paths:
                np.testing.assert_allclose(embedder.embed([path]), block.vectors, atol=1e-6)
            assert item.sha256 is not None
            assert item.id == item.sha256[:ID_DIGITS]
            assert item.size == Path(item.paths[0]).stat().st_size
    twins = [found for found in paths(tmp_path / "index").values() if len(found) == 2]
    assert [[Path(p).name for p in found] for found in twins] == [["0.png", "twin.png"]]

    said = couce("build", "gallery")
    assert "14 images: 13 unchanged" in said
    assert "added" not in said
    assert "broken.png" in couce("build", "gallery", "--strict", code=1)

    # One file each is changed, touched, moved to another class, and deleted.
    write_picture(gallery / "class-0" / "1.png", 77)
    os.utime(gallery / "class-0" / "2.png", ns=(1, 1))
    (gallery / "class-0" / "3.png").rename(gallery / "class-1" / "moved.png")
    (gallery / "class-2" / "0.png").unlink()
    (gallery / "class-2" / "broken.png").unlink()
    said = couce("build", "gallery")
    assert "1 added" in said
    assert "1 removed" in said
    assert "2 known files are gone" in said
    said = couce("build", "gallery", "--prune")
    assert "1 removed" in said
    names = sorted(
        Path(p).relative_to(gallery) for f in paths(tmp_path / "index").values() for p in f
    )
    assert names == sorted(p.relative_to(gallery) for p in gallery.rglob("*.png"))
    with open_index(tmp_path / "index") as index:
        (moved,) = [i for i in index.every_item() if i.paths[0].endswith("moved.png")]
        assert moved.label == "class-1"
        assert len(index) == 11
    assert "11 unchanged" in re.sub("12 unchanged", "11 unchanged", couce("build", "gallery"))
    assert "No faults" in couce("verify")


@pytest.mark.usefixtures("model")
def test_strange_names_come_back(tmp_path: Path, couce: Couce) -> None:
    folder = tmp_path / "gallery" / os.fsdecode(b"class \xff 'x' \"y\"")
    for seed, name in enumerate(STRANGE):
        write_picture(folder / name, seed)
    assert f"{len(STRANGE)} added" in couce("build", "gallery")
    assert f"{len(STRANGE)} unchanged" in couce("build", "gallery")
    found = {Path(p).name for each in paths(tmp_path / "index").values() for p in each}
    assert found == set(STRANGE)
    with open_index(tmp_path / "index") as index:
        assert index.labels() == {"class \\xff 'x' \"y\"": len(STRANGE)}
    said = couce("search", str(folder / STRANGE[6]), "-k", "10", "--grid", "grid.png")
    assert "1.0000" in said
    with Image.open(tmp_path / "grid.png") as grid:
        assert grid.width > 500
    couce("duplicates", "--threshold", "-1")
    for name in ("all.parquet", "all.npz"):
        couce("export", name)
        couce("import", name, "--index", f"from-{name}")
        assert paths(tmp_path / f"from-{name}") == paths(tmp_path / "index")


@pytest.mark.usefixtures("model", "gallery")
def test_a_list_of_labels(tmp_path: Path, couce: Couce) -> None:
    with (tmp_path / "list.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "id", "year"])
        writer.writerow(["class-0/0.png", "wren", "w1", "2024"])
        writer.writerow(["class-0/1.png", "owl", "", ""])
        writer.writerow(["class-0/absent.png", "owl", "", ""])
    said = couce("build", "gallery", "--labels", "list.csv")
    assert "absent.png: no such file or directory" in said
    with open_index(tmp_path / "index") as index:
        item = index.get("w1")
        assert item is not None
        assert (item.label, item.metadata) == ("wren", {"year": "2024"})
        assert index.labels() == {"wren": 1, "owl": 1}
    said = couce("search", "gallery/class-0/1.png", "--filter", "metadata.year=2024")
    assert "wren" in said
    assert "owl" not in said
    (tmp_path / "list.csv").write_text("path,label,id\nclass-0/0.png,robin,w1\n")
    assert "2 updated" in couce("build", "gallery", "--labels", "list.csv")
    with open_index(tmp_path / "index") as index:
        assert index.labels() == {"robin": 1}
    (tmp_path / "list.csv").write_text("file,class\na,b\n")
    said = couce("build", "gallery", "--labels", "list.csv", code=2)
    assert "must have the columns path and label" in said


@pytest.mark.usefixtures("model")
def test_shards_join_to_the_whole(tmp_path: Path, gallery: Path, couce: Couce) -> None:
    write_picture(gallery / "class-2" / "twin.png", 0)
    couce("build", "gallery", "--out", "whole")
    for part in (1, 2, 3):
        couce("build", "gallery", "--out", f"part-{part}", "--shard", f"{part}/3")
    couce("merge", "joined", "part-1", "part-2", "part-3")
    assert paths(tmp_path / "joined") == paths(tmp_path / "whole")
    assert sum(len(paths(tmp_path / f"part-{n}")) for n in (1, 2, 3)) >= 12
    couce("copy", "joined", "copied")
    assert paths(tmp_path / "copied") == paths(tmp_path / "whole")
    assert "write a shard as i/n" in couce("build", "gallery", "--shard", "4/3", code=2)


@pytest.mark.usefixtures("model", "gallery")
def test_add_remove_and_info(tmp_path: Path, couce: Couce) -> None:
    couce("build", "gallery")
    picture = write_picture(tmp_path / "new.png", 500)
    said = couce("add", str(picture), "--label", "guest", "--metadata", "from=abroad")
    id = said.splitlines()[0]
    assert "guest" in couce("search", "new.png", "-k", "1")
    assert re.search(r"items\s+13", couce("info"))
    assert "1 removed" in couce("remove", id)
    assert "4 removed" in couce("remove", "--filter", "label=class-1")
    assert re.search(r"items\s+8", couce("info"))
    assert "say what to remove" in couce("remove", code=2)
    (tmp_path / "bad.png").write_bytes(b"")
    said = couce("add", "new.png", "bad.png", code=2)
    assert re.search(r"items\s+8", couce("info"))
    assert "no such file" in couce("add", "nowhere.png", code=2)


@pytest.mark.usefixtures("model")
def test_bytes_that_move_far_are_not_lost(tmp_path: Path, couce: Couce) -> None:
    """The first of many files is replaced, and its old bytes are found again in the last file.

    Between the two, changes are stored several times.
    """
    folder = tmp_path / "gallery" / "x"
    for number in range(600):
        write_picture(folder / f"{number:03}.png", number)
    couce("build", "gallery")
    write_picture(folder / "000.png", 5000)
    for number in range(1, 600):
        os.utime(folder / f"{number:03}.png", ns=(1, 1))
    write_picture(folder / "999.png", 0)
    assert "1 added, 600 updated" in couce("build", "gallery")
    found = paths(tmp_path / "index")
    assert len(found) == 601
    assert all(len(each) == 1 for each in found.values())
    assert "601 unchanged" in couce("build", "gallery", "--prune")


@pytest.mark.usefixtures("model")
def test_an_interrupted_build_goes_on(tmp_path: Path, couce: Couce) -> None:
    """A build is killed after its first commit. The next one only embeds the remaining files."""
    for number in range(700):
        write_picture(tmp_path / "gallery" / "x" / f"{number}.png", number)
    command = [sys.executable, "-m", "couce", "index", "build", "gallery"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        try:
            with open_index(tmp_path / "index") as index:
                if len(index):
                    process.kill()
                    break
        except ValueError:  # the index does not exist yet
            pass
    process.wait()
    with open_index(tmp_path / "index") as index:
        kept = len(index)
    assert kept % 256 == 0 or kept == 700
    said = couce("build", "gallery")
    assert f"{700 - kept} added, {kept} unchanged" in said or kept == 700
    with open_index(tmp_path / "index") as index:
        assert len(index) == 700


@pytest.mark.usefixtures("model", "gallery")
def test_another_model_is_refused(tmp_path: Path, couce: Couce) -> None:
    couce("build", "gallery")
    write_model(tmp_path / "other.onnx", seed=1)
    for command in (["build", "gallery"], ["search", "gallery/class-0/0.png"]):
        said = couce(*command, "--model", "other.onnx", code=2)
        assert "was built with another model" in said
        assert "build another index with this one" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["build", "nowhere"], "there is no folder nowhere"),
        (["build", "gallery", "--model", "none.onnx"], "there is no model at none.onnx"),
        (["build", "gallery", "--type", "ivff"], "did you mean 'ivf'"),
        (["build", "gallery", "--type", "IVF12,Nonsense"], "FAISS knows no index"),
        (["build", "gallery", "--engine", "spark"], "unknown engine 'spark'"),
        (["build", "gallery", "--to", "ftp://x"], "not the address of an index"),
        (["info", "nowhere"], "there is no index in nowhere"),
        (["remove", "x", "--index", "nowhere"], "there is no index in nowhere"),
        (["verify", "nowhere"], "there is no index in nowhere"),
        (["compact", "nowhere"], "there is no index in nowhere"),
        (["search", "gallery/class-0/0.png"], "there is no index in index"),
        (["export", "x.csv"], "there is no index"),
        (["import", "model.onnx"], "must end in .parquet or .npz"),
        (["plan", "--vectors", "1e3", "--rate", "0"], "a plan needs"),
    ],
)
@pytest.mark.usefixtures("model", "gallery")
def test_wrong_calls_are_sentences(
    tmp_path: Path, couce: Couce, arguments: list[str], words: str
) -> None:
    said = couce(*arguments, code=2)
    assert words in said, said
    assert not (tmp_path / "nowhere").exists()


def test_a_plan_shows_its_formulas(couce: Couce) -> None:
    said = couce("plan", "--vectors", "1e9")
    assert "n·(4d + 8)" in said
    assert "2,056.00 GB" in said  # 1e9 * (4 * 512 + 8)
    assert "Milvus with IVF_PQ on 5 query nodes" in said
    assert "one machine: a folder, --type flat" in couce("plan", "--vectors", "1000")


@pytest.mark.usefixtures("model", "gallery")
def test_the_structure_is_measured_and_kept(tmp_path: Path, couce: Couce) -> None:
    couce("build", "gallery")
    with LocalIndex(tmp_path / "index", "write", background=False) as index:
        index.add(numbered(unit(3000)))
    said = couce("compact", "--type", "ivf", "--recall", "0.95")
    assert re.search(r"recall@10 0\.9[5-9]\d+ on 150 held-out queries, [\d.]+ ms per query", said)
    manifest = json.loads((tmp_path / "index" / "manifest.json").read_text())
    assert manifest["structure"]["asked"] == "ivf"
    assert manifest["structure"]["measured"]["recall"] >= 0.95
    assert "structure IVF" in couce("compact")  # as it was


@pytest.mark.usefixtures("model")
def test_halves_are_no_labels(tmp_path: Path, couce: Couce) -> None:
    write_picture(tmp_path / "set" / "train" / "wren" / "0.png", 0)
    write_picture(tmp_path / "set" / "test" / "owl" / "1.png", 1)
    couce("build", "set")
    with open_index(tmp_path / "index") as index:
        assert index.labels() == {"owl": 1, "wren": 1}


def test_a_foreign_model_with_its_preprocessing_said(
    tmp_path: Path, model: Path, gallery: Path, couce: Couce
) -> None:
    foreign = onnx.load(model)
    del foreign.metadata_props[:]
    onnx.save(foreign, tmp_path / "foreign.onnx")
    options = ["--model", "foreign.onnx"]
    assert "--preprocess resize=256" in couce("build", "gallery", *options, code=2)
    options += ["--preprocess", "resize=16", "--preprocess", "crop=16"]
    assert "12 added" in couce("build", "gallery", *options)
    picture = gallery / "class-1" / "2.png"
    found = couce("search", str(picture), *options, "-k", "1")
    assert "1.0000" in found
    assert picture.name in found
    couce("add", str(picture), *options, "--label", "again")
