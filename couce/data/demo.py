"""The demo set: drawn images, where background and light give away the class in training.

There are 64 classes: eight kinds of object (bird, fish, ...) in eight variants, which differ in
colours and markings. The images have 64 x 64 pixels, and the poses vary. In the training half (32
classes), each class is mostly before its own background and in its own light, as birds are in their
habitats. In the test half (the 32 other classes), background and light are independent of the
class. So a model that has learned background and light instead of objects fails there. The seed
determines all images.
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
    """The description of one image of the set."""

    half: str  # train or test
    thing: str  # the kind of object
    variant: int
    background: str
    light: str
    seed: tuple[int, ...]

    @property
    def label(self) -> str:
        return f"{self.thing}-{self.variant}"


def examples(confounding: float, per_class: int, seed: int) -> list[Example]:
    """The descriptions of all images.

    ``confounding`` is the share of training images that have the background and the light of their
    class. The other training images and the test half have random ones.
    """
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
    """Draws the image: 64 x 64, RGB."""
    rng = np.random.default_rng((*example.seed, 1))
    scene = BACKGROUNDS[example.background](rng)
    thing, corner = _place(example, rng)
    scene.paste(thing, corner, thing)
    return Image.fromarray(light_up(np.asarray(_scaled_down(scene)), example.light, rng))


def object_mask(example: Example) -> Image.Image:
    """The mask of the object in :func:`draw`'s image: 64 x 64, from 0 to 255 (the object)."""
    rng = np.random.default_rng((*example.seed, 1))
    BACKGROUNDS[example.background](rng)  # takes the same random numbers as in `draw`
    thing, corner = _place(example, rng)
    mask = Image.new("L", (CANVAS, CANVAS))
    mask.paste(thing.getchannel("A"), corner)
    return _scaled_down(mask)


def _place(example: Example, rng: Rng) -> tuple[Image.Image, tuple[int, int]]:
    """The object in its pose, on a transparent canvas, and the place of its upper left corner."""
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
    """The description of a file that :func:`write_demo` wrote."""
    return plan[int(path.stem)]


def write_demo(folder: Path, confounding: float = 0.9, per_class: int = 30, seed: int = 0) -> Path:
    """Writes ``train/CLASS/N.png`` and ``test/CLASS/N.png`` below ``folder``.

    Nothing is written if ``folder`` has this demo set already. A demo set with other parameters is
    replaced. Any other existing folder is an error and stays unchanged.
    """
    recipe = {"confounding": confounding, "per_class": per_class, "seed": seed}
    if folder.exists():
        found = _recipe(folder)
        if found == recipe:
            return folder
        if found is None or found.keys() != recipe.keys():
            raise CouceError(f"{folder} exists and is not a demo set; name another folder")
    # The folder gets its name when it is complete. Another process may draw the same set meanwhile.
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.part-", dir=folder.parent))
    try:
        for number, example in enumerate(examples(confounding, per_class, seed)):
            path = part / example.half / example.label / f"{number:05}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            draw(example).save(path, compress_level=1)
        (part / "recipe.json").write_text(json.dumps(recipe))
        part.chmod(0o755)  # mkdtemp makes a folder that only its owner can read
        if folder.exists() and _recipe(folder) not in (None, recipe):
            shutil.rmtree(folder)
        part.rename(folder)
    except OSError:
        # It is no error if another process has written the same set in the meantime.
        if not folder.exists() or _recipe(folder) != recipe:
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def read_plan(folder: Path) -> list[Example]:
    """The descriptions of all images of the demo set in ``folder``."""
    recipe = _recipe(folder)
    if recipe is None:
        raise CouceError(f"{folder} is not a demo set; name the folder of one")
    return examples(recipe["confounding"], int(recipe["per_class"]), int(recipe["seed"]))


def _recipe(folder: Path) -> dict[str, float] | None:
    """The parameters of the demo set in ``folder``; None if ``folder`` is not a demo set."""
    if {path.name for path in folder.iterdir()} != {"recipe.json", "train", "test"}:
        return None
    try:
        recipe = json.loads((folder / "recipe.json").read_text())
    except ValueError:
        return None
    return recipe if isinstance(recipe, dict) else None
