"""A real model, a gallery of drawn images and real servers for the tests of the page."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from couce.embedder import Embedder
from couce.models.info import ModelInfo
from couce.preprocess import Preprocess

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Page

CROP, CELLS = 16, 4
DIM = CELLS * CELLS * 3
PER_CLASS = 12
COLOURS = {
    "amber": (230, 160, 30),
    "blue": (40, 80, 220),
    "green": (40, 170, 70),
    "plum": (140, 40, 120),
    # Names of folders with HTML, from right to left, or very long.
    "\"><img src=x onerror='document.title=1'>&amp;": (200, 60, 50),
    "ציפור 🐦 " + "long" * 40: (90, 200, 210),
}
HOSTILE, LONG = list(COLOURS)[-2:]


def write_model(path: Path) -> Path:
    """Writes a model whose embedding is the mean colours of 4 x 4 cells, minus 127.5."""
    shape = [CROP, CROP, 3]
    nodes = [
        helper.make_node("Cast", ["image"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["pixels", "middle"], ["centred"]),
        helper.make_node("Transpose", ["centred"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("AveragePool", ["planes"], ["cells"], kernel_shape=[4, 4], strides=[4, 4]),
        helper.make_node("Flatten", ["cells"], ["embedding"]),
    ]
    graph = helper.make_graph(
        nodes,
        "cells",
        [helper.make_tensor_value_info("image", TensorProto.UINT8, ["n", *shape])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["n", DIM])],
        [numpy_helper.from_array(np.array(127.5, np.float32), "middle")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    info = ModelInfo(
        input="uint8",
        precision="fp32",
        backbone="cells",
        dim=DIM,
        preprocess=Preprocess(resize=CROP, crop=CROP).to_dict(),
        weights="0" * 64,
        dataset="none",
        metrics={},
        licence="none",
        couce="0",
    )
    helper.set_model_props(model, info.to_metadata())
    onnx.save(model, path)
    return path


def write_picture(path: Path, colour: tuple[int, int, int], seed: int) -> Path:
    """Writes an image of this colour, with spots that depend on the seed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(-90, 90, (6, 8, 3))
    pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
    Image.fromarray(pixels).resize((96, 72), Image.Resampling.NEAREST).save(path, "PNG")
    return path


@dataclass
class Site:
    """The gallery, and the expected hits of a search, found by comparing all items."""

    folder: Path
    ids: list[str]
    labels: list[str]
    files: list[Path]
    vectors: NDArray[np.float32]
    embedder: Embedder

    def like(self, number: int, k: int) -> list[str]:
        """The hits of a search with an item, which leaves out the item itself."""
        found = self.nearest(self.vectors[number], k + 1)
        return [each for each in found if not each.startswith(self.ids[number])][:k]

    def nearest(self, query: NDArray[np.float32], k: int, label: str | None = None) -> list[str]:
        scores = [
            (float(row @ query), id)
            for row, id, own in zip(self.vectors, self.ids, self.labels, strict=True)
            if label in (None, own)
        ]
        return [f"{id} {score:.3f}" for score, id in sorted(scores, reverse=True)[:k]]


def couce(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "couce", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def write_site(folder: Path) -> Site:
    write_model(folder / "model.onnx")
    files, labels = [], []
    for place, (label, colour) in enumerate(COLOURS.items()):
        for number in range(PER_CLASS):
            path = folder / "gallery" / label / f"{number}.png"
            files.append(write_picture(path, colour, 100 * place + number))
            labels.append(label)
    couce(folder, "index", "build", "gallery")
    embedder = Embedder(folder / "model.onnx", threads=1)
    ids = [sha256(path.read_bytes()).hexdigest()[:32] for path in files]
    return Site(folder, ids, labels, files, embedder.embed(files), embedder)


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[str]:
    """Runs `couce serve` on a free port, and yields its address."""
    command = [sys.executable, "-m", "couce", "serve", "--port", "0", *options]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            assert server.stdout is not None
            greeting = server.stdout.readline()
            found = re.search(r"http://[\d.:]+", greeting)
            assert found, greeting + (folder / "server.log").read_text()
            yield found[0]
        finally:
            server.terminate()
            server.wait(60)


class Visit:
    """A page whose errors and warnings are recorded. Those that are not expected fail the test."""

    def __init__(self, page: "Page", site: Site) -> None:
        self.page, self.site = page, site
        self.complaints: list[str] = []
        self._expected: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(dialog.message))

    def _console(self, message: "ConsoleMessage") -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def expect_complaint(self, *texts: str) -> None:
        """Expects messages of the browser, which reports every answer that is an error."""
        self._expected += texts

    def unexpected(self) -> list[str]:
        return [
            text for text in self.complaints if not any(known in text for known in self._expected)
        ]

    def search_with(self, path: Path | dict[str, Any]) -> None:
        self.page.set_input_files("#picture-file", path)  # type: ignore[arg-type]

    def hits(self, count: int) -> list[str]:
        """The id and score of every hit, after waiting until there are ``count`` hits."""
        from playwright.sync_api import expect

        tiles = self.page.locator("#hits a.tile")
        expect(tiles).to_have_count(count)
        expect(self.page.locator("#results")).to_have_attribute("aria-busy", "false")
        return tiles.evaluate_all(
            """tiles => tiles.map((tile) =>
                new URLSearchParams(tile.hash.split("?")[1]).get("id")
                + " " + tile.querySelector(".score").textContent)"""
        )

    def labels(self) -> list[str]:
        return self.page.locator("#hits a.tile bdi").all_text_contents()

    def pictures_load(self, within: str) -> None:
        """Waits until every image on the screen has loaded."""
        self.page.wait_for_function(
            """(within) => {
                const seen = [...document.querySelectorAll(within + " img")]
                    .filter((image) => image.getBoundingClientRect().top < innerHeight);
                return seen.length && seen.every((image) => image.naturalWidth > 0);
            }""",
            arg=within,
        )
