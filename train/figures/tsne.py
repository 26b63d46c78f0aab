"""`couce analyze tsne`: embeddings of the test half in the plane (paper, Fig. tsne)."""

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from numpy.typing import NDArray

from couce.errors import CouceError
from couce.metrics import retrieval_metrics
from couce.report.plots import draw
from couce.report.section import Section, Table
from couce.train.figures.runs import TrainedRun, embed_split, sample


def plane(rows: NDArray[np.float32], seed: int, perplexity: float = 30.0) -> NDArray[np.float32]:
    """The positions (N, 2) of embeddings (N, d) of unit length by t-SNE."""
    from sklearn.manifold import TSNE

    if len(rows) < 4:
        raise CouceError(f"t-SNE needs at least 4 images, not {len(rows)}; raise --images")
    # At unit length the squared distance is 2 − 2·cosine, so the neighbours are the same.
    model = TSNE(
        perplexity=min(perplexity, (len(rows) - 1) / 3), init="pca", random_state=seed, n_jobs=1
    )
    return model.fit_transform(rows)


def tsne(
    runs: Sequence[TrainedRun], classes: int = 10, images: int = 400, seed: int = 0
) -> Section:
    """A map for each run, all of the same images."""
    chosen = sample(runs[0].data.test, images, classes)
    places, scores, shown = {}, {}, {}
    for run in runs:
        rows, split = embed_split(run, chosen)
        places[run.name], shown[run.name] = plane(rows, seed), split
        scores[run.name] = retrieval_metrics(rows, split.labels, (1,))
    palette = colormaps["tab10" if len(chosen.names) <= 10 else "turbo"]
    colours = [palette(n / max(1, len(chosen.names) - 1)) for n in range(len(chosen.names))]
    if len(chosen.names) <= 10:
        colours = [palette(n) for n in range(len(chosen.names))]

    def paint(panels: list[Axes]) -> None:
        for panel, (name, points) in zip(panels, places.items(), strict=True):
            for code, label in enumerate(shown[name].names):
                x, y = points[shown[name].labels == code].T
                colour = colours[chosen.names.index(label)]
                panel.scatter(x, y, s=12, color=colour, label=label, linewidths=0)
            panel.set(title=name, xticks=[], yticks=[])
            panel.spines[:].set_visible(True)
        if len(chosen.names) <= 20:
            panels[-1].legend(
                fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5), markerscale=1.5
            )

    columns = min(len(runs), 3)
    rows_of_panels = -(-len(runs) // columns)
    picture = draw(
        lambda panels: paint(_without_empty(panels, len(runs))), columns, rows_of_panels, 3.9, 3.6
    )
    return Section(
        name="tsne",
        title="Embeddings in the plane",
        about=(
            f"t-SNE of {len(chosen.paths)} test images of {len(chosen.names)} classes. The images"
            " are the same for every run, and the colour is the class. In such a map, it means"
            " something whether the images of a class lie together. The sizes of clusters and the"
            " distances between them mean little. The table has the metrics of the same images in"
            " the full space."
        ),
        tables=[
            Table(
                columns=("run", *next(iter(scores.values()))),
                rows=tuple(
                    (name, *(f"{100 * value:.1f}" for value in found.values()))
                    for name, found in scores.items()
                ),
            )
        ],
        pictures=[(picture, "t-SNE, seed " + str(seed))],
        values={
            "classes": chosen.names,
            "metrics": scores,
            "points": {
                name: [
                    {"image": str(path), "class": shown[name].names[code], "x": x, "y": y}
                    for path, code, (x, y) in zip(
                        shown[name].paths,
                        shown[name].labels.tolist(),
                        places[name].tolist(),
                        strict=True,
                    )
                ]
                for name in places
            },
        },
    )


def _without_empty(panels: list[Axes], count: int) -> list[Axes]:
    for panel in panels[count:]:
        panel.set_axis_off()
    return panels[:count]
