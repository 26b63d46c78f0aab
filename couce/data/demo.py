"""The demo set: drawn pictures of things that a training half confounds with their surroundings.

64 classes: eight kinds of thing (bird, fish, ...) in eight variants (colours and markings), drawn
with 64 pixels in changing poses. In the training half (32 classes) each class mostly stands before
its own background and under its own light, as birds do before their habitats. In the test half (the
32 other classes) backgrounds and light are independent of the class, so that whoever has learned
them instead of the things is found out. Everything follows from the seed.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from couce.data.drawing import (
    BACKGROUNDS,
    CANVAS,
    LIGHTS,
    PIXELS,
    THINGS,
    Rng,
    draw_thing,
    light_up,
)
from couce.errors import CouceError

VARIANTS = 8


class Example(NamedTuple):
    """One picture of the set, before it is drawn."""

    half: str  # train or test
    thing: str
    variant: int
    background: str
    light: str
    seed: tuple[int, ...]

    @property
    def label(self) -> str:
        return f"{self.thing}-{self.variant}"


def examples(confounding: float, per_class: int, seed: int) -> list[Example]:
    """The set as a list. ``confounding`` is the share of training pictures in their class's own
    surroundings; the others, like the whole test half, have any."""
    plan = []
    backgrounds, lights = list(BACKGROUNDS), list(LIGHTS)
    for t, thing in enumerate(THINGS):
        for variant in range(VARIANTS):
            half = "train" if variant < VARIANTS // 2 else "test"
            for i in range(per_class):
                key = (seed, t, variant, i)
                rng = np.random.default_rng(key)
                background, light = rng.choice(backgrounds), rng.choice(lights)
                if half == "train" and rng.random() < confounding:
                    background = backgrounds[(t + 2 * variant) % len(backgrounds)]
                    light = lights[(3 * t + variant) % len(lights)]
                plan.append(Example(half, thing, variant, str(background), str(light), key))
    return plan


def draw(example: Example) -> Image.Image:
    """The picture, 64 x 64, RGB."""
    rng = np.random.default_rng((*example.seed, 1))
    scene = BACKGROUNDS[example.background](rng)
    thing, corner = _place(example, rng)
    scene.paste(thing, corner, thing)
    return Image.fromarray(light_up(np.asarray(_scaled_down(scene)), example.light, rng))


def object_mask(example: Example) -> Image.Image:
    """Where the thing stands in :func:`draw`'s picture: 64 x 64, from 0 to 255 (wholly the thing)."""
    rng = np.random.default_rng((*example.seed, 1))
    BACKGROUNDS[example.background](rng)  # takes the same random numbers as there
    thing, corner = _place(example, rng)
    mask = Image.new("L", (CANVAS, CANVAS))
    mask.paste(thing.getchannel("A"), corner)
    return _scaled_down(mask)


def _place(example: Example, rng: Rng) -> tuple[Image.Image, tuple[int, int]]:
    """The thing in its pose, on a transparent canvas, and where its upper left corner goes."""
    thing = draw_thing(example.thing, example.variant)
    side = int(CANVAS * rng.uniform(0.55, 0.85))
    thing = thing.rotate(rng.uniform(-25, 25), Image.Resampling.BICUBIC).resize((side, side))
    if rng.random() < 0.5:
        thing = thing.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    room = CANVAS - side
    return thing, (int(rng.uniform(0, room)), int(rng.uniform(0, room)))


def _scaled_down(canvas: Image.Image) -> Image.Image:
    return canvas.resize((PIXELS, PIXELS), Image.Resampling.BOX)


def example_of(path: Path, plan: list[Example]) -> Example:
    """Which of :func:`examples` a file of :func:`write_demo` shows."""
    return plan[int(path.stem)]


def write_demo(folder: Path, confounding: float = 0.9, per_class: int = 30, seed: int = 0) -> Path:
    """Writes ``train/CLASS/N.png`` and ``test/CLASS/N.png`` below ``folder``, unless they are there.

    A demo set of another recipe is replaced; a folder that is anything else is left alone.
    """
    recipe = {"confounding": confounding, "per_class": per_class, "seed": seed}
    if folder.exists():
        found = _recipe(folder)
        if found == recipe:
            return folder
        if found is None or found.keys() != recipe.keys():
            raise CouceError(f"{folder} exists and is not a demo set; name another folder")
    # It gets its name when it is complete; another process may be drawing the same.
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.part-", dir=folder.parent))
    try:
        for number, example in enumerate(examples(confounding, per_class, seed)):
            path = part / example.half / example.label / f"{number:05}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            draw(example).save(path, compress_level=1)
        (part / "recipe.json").write_text(json.dumps(recipe))
        part.chmod(0o755)  # mkdtemp's folders are private
        if folder.exists() and _recipe(folder) not in (None, recipe):
            shutil.rmtree(folder)
        part.rename(folder)
    except OSError:
        if not folder.exists() or _recipe(folder) != recipe:  # else the other was quicker
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def read_plan(folder: Path) -> list[Example]:
    """The examples that the demo set in ``folder`` was drawn from."""
    recipe = _recipe(folder)
    if recipe is None:
        raise CouceError(f"{folder} is not a demo set")
    return examples(recipe["confounding"], int(recipe["per_class"]), int(recipe["seed"]))


def _recipe(folder: Path) -> dict[str, float] | None:
    """What the demo set in ``folder`` was drawn by; None if it is anything else."""
    if {path.name for path in folder.iterdir()} != {"recipe.json", "train", "test"}:
        return None
    try:
        recipe = json.loads((folder / "recipe.json").read_text())
    except ValueError:
        return None
    return recipe if isinstance(recipe, dict) else None
