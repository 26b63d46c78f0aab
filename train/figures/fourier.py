"""`couce analyze fourier`: how MSRCI changes amplitude and phase (paper, Table msrci_fourier).

The paper gives ‖Φ̃ − Φ‖/‖Φ‖ and ‖Ã − A‖/‖A‖ of the whole spectrum. Two things differ here. A
difference of phases is wrapped to (−π, π], because −3.1 and 3.1 are neighbours. Phases are weighted
by the amplitude of their bin, because the phase of an empty bin is noise. The paper's formula, as
it is written, is given as well. All values are measured on the maps that come out of MSRCI, not
taken from the factors that it drew.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from torch import Tensor

from couce.method import MSRCI, band_strengths
from couce.method.msrci import ring_of_bins
from couce.report.plots import draw, grouped, logarithmic
from couce.report.section import Section, Table
from couce.train.figures.runs import TrainedRun, load_images, sample

SCHEDULES = ("custom", "linear", "exponential", "uniform")  # custom is the paper's default


class Change(NamedTuple):
    """Relative changes, of one ring of the spectrum or of the whole spectrum."""

    amplitude: float
    phase: float  # wrapped, weighted by amplitude
    literal: float  # of the phase by the paper's formula: neither wrapped nor weighted


def interventions(run: TrainedRun) -> dict[str, MSRCI]:
    """MSRCI with each schedule, and with the bands, strength and scope of the run."""
    msrci = run.settings.msrci
    return {
        name: MSRCI(band_strengths(name, msrci.bands, msrci.strongest), msrci.scope)
        for name in SCHEDULES
    }


def wrapped(difference: Tensor) -> Tensor:
    """The same angles in the interval (−π, π].

    >>> wrapped(torch.tensor([0.5, 6.2])).round(decimals=3)
    tensor([ 0.5000, -0.0830])
    """
    return -torch.remainder(-difference + torch.pi, 2 * torch.pi) + torch.pi


def phase_and_amplitude(maps: Tensor, changed: Tensor, rings: int) -> Tensor:
    """Sums (rings, 6) over the spectra of ``maps`` and ``changed`` (N, C, H, W), for each ring.

    The six are sums of squares: the change of A, and A; the wrapped change of Φ, and Φ, both
    weighted by A; the plain change of Φ, and Φ. A bin of the half spectrum counts twice if it
    stands for two bins of the whole spectrum.
    """
    height, width = maps.shape[-2:]
    before, after = (torch.fft.rfft2(x.double()) for x in (maps, changed))
    size, phase = before.abs(), before.angle()
    turned = after.angle() - phase
    terms = torch.stack(
        [
            (after.abs() - size).square(),
            size.square(),
            size * wrapped(turned).square(),
            size * phase.square(),
            turned.square(),
            phase.square(),
        ]
    ).sum(dim=(1, 2))  # (6, H, W//2 + 1)
    twice = torch.full((width // 2 + 1,), 2.0, dtype=terms.dtype, device=terms.device)
    twice[0] = 1
    if width % 2 == 0:
        twice[-1] = 1
    ring = ring_of_bins(height, width, rings).to(terms.device).flatten()
    sums = torch.zeros(rings, 6, dtype=terms.dtype, device=terms.device)
    return sums.index_add_(0, ring, (terms * twice).flatten(1).T).cpu()


def change(sums: Tensor) -> Change:
    """The relative changes from six sums (6,) of :func:`phase_and_amplitude`."""
    roots = sums.sqrt().tolist()
    return Change(*(roots[n] / roots[n + 1] if roots[n + 1] else 0.0 for n in (0, 2, 4)))


@torch.inference_mode()
def measure(run: TrainedRun, images: int, seed: int) -> dict[str, list[Change]]:
    """For each schedule: the change of the whole spectrum, then of each ring."""
    rings = run.settings.msrci.bands
    modules = interventions(run)
    sums = {name: torch.zeros(rings, 6, dtype=torch.float64) for name in modules}
    for maps in _maps(run, images):
        for name, module in modules.items():
            # The same draws for every schedule: only their strengths differ.
            generator = torch.Generator().manual_seed(seed)
            sums[name] += phase_and_amplitude(maps, module(maps, generator), rings)
        seed += 1
    return {
        name: [change(found.sum(dim=0)), *(change(ring) for ring in found)]
        for name, found in sums.items()
    }


def _maps(run: TrainedRun, images: int) -> Iterator[Tensor]:
    for batch, _ in load_images(run, sample(run.data.test, images, images // 4)):
        yield run.network.backbone.stage1(batch)


def fourier(run: TrainedRun, images: int = 400, seed: int = 0) -> Section:
    found = measure(run, images, seed)
    rings = run.settings.msrci.bands
    places = ["all", *(f"ring {n}" for n in range(1, rings + 1))]
    strengths = {name: module.gammas for name, module in interventions(run).items()}
    rows = tuple(
        (
            name if place == 0 else "",
            places[place] if place == 0 else f"{places[place]}, γ {strengths[name][place - 1]:.2f}",
            f"{each.amplitude:.3f}",
            f"{each.phase:.1e}",
            f"{each.literal:.1e}",
        )
        for name, changes in found.items()
        for place, each in enumerate(changes)
    )

    def paint(panels: list[Axes]) -> None:
        grouped(panels[0], places, {k: [c.amplitude for c in v] for k, v in found.items()})
        panels[0].set(title="amplitude", ylabel="relative change")
        grouped(panels[1], places, {k: [c.phase for c in v] for k, v in found.items()})
        panels[1].set(title="phase", yscale="log", ylim=(1e-9, 1))
        panels[1].legend(fontsize=8)
        logarithmic(panels[1].yaxis)

    return Section(
        name="fourier",
        title="What the intervention changes in the spectrum",
        about=(
            f"The feature maps of {run.name} after {run.network.backbone.split}, for about {images}"
            " test images, before and after MSRCI, for each schedule (custom is the paper's). The"
            " table has the relative changes of amplitude and of phase (wrapped, weighted by"
            " amplitude). The phase should change by rounding only. The amplitude should change,"
            " and with every schedule but uniform it should change most in the outer rings."
        ),
        tables=[
            Table(
                columns=("schedule", "where", "ΔA", "ΔΦ", "ΔΦ, paper's formula"),
                rows=rows,
            )
        ],
        pictures=[(draw(paint, columns=2), "Relative change of amplitude and of phase, by ring.")],
        values={
            "run": run.name,
            "split": run.network.backbone.split,
            "changes": {
                name: dict(zip(places, changes, strict=True)) for name, changes in found.items()
            },
        },
    )
