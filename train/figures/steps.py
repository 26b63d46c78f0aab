"""One step of training, as the paper's table of overhead has its rows, to be timed and weighed."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from couce.backbones import build_backbone
from couce.errors import CouceError
from couce.losses import LOSSES
from couce.machine.device import choose_device
from couce.method import CouCE, MethodSettings
from couce.method.ablations import overhead_rows
from couce.network import EmbeddingNetwork

ROWS = overhead_rows((512, 2048, 4096, 8192))
_CLASSES, _IMAGES_A_CLASS = 100, 3


class Case(NamedTuple):
    backbone: str
    batch: int
    pixels: int
    device: str = "cpu"


class Bench:
    """A network and a batch of noise; the rows train it in turn, each with an objective of its own."""

    def __init__(self, case: Case) -> None:
        if case.batch < 2 * _IMAGES_A_CLASS:
            raise CouceError(f"a batch has two classes at least: 6 images, not {case.batch}")
        torch.manual_seed(0)
        self.device = choose_device(case.device)
        self.network = EmbeddingNetwork(build_backbone(case.backbone)).on(self.device)
        self.optimiser = torch.optim.Adam(self.network.parameters(), lr=1e-4)
        images = torch.randn(case.batch, 3, case.pixels, case.pixels, device=self.device)
        self.images = images.to(memory_format=torch.channels_last)
        self.labels = torch.arange(case.batch, device=self.device) // _IMAGES_A_CLASS % _CLASSES

    def step(self, row: str) -> Callable[[], None]:
        """Forward, loss, backward and Adam, with a full dictionary."""
        loss = LOSSES["proxy-an"](num_classes=_CLASSES, dim=self.network.dim)
        objective = CouCE(loss, MethodSettings.parse(ROWS[row])).to(self.device)
        optimiser = torch.optim.Adam(objective.parameters(), lr=1e-4)
        if objective.odba is not None:
            odba = objective.odba
            odba.dictionary.copy_(torch.nn.functional.normalize(torch.randn_like(odba.dictionary)))
            odba.filled.fill_(odba.capacity)

        def step() -> None:
            self.network.train()
            self.network.backbone.eval()  # BatchNorm's statistics are frozen, as for CUB
            m, m_tilde = self.network.views(self.images, objective.intervention)
            total = objective(m, self.labels, m_tilde).total
            self.optimiser.zero_grad()
            optimiser.zero_grad()
            total.backward()
            self.optimiser.step()
            optimiser.step()
            self._wait()

        return step

    def inference(self) -> None:
        """The embeddings of the batch; whatever it was trained with, this is all there is."""
        self.network.eval()
        with torch.inference_mode():
            self.network(self.images)
        self._wait()

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def operations(step: Callable[[], None]) -> int:
    """Floating-point operations of a step's products and convolutions, forward and backward."""
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def peak_memory(case: Case, row: str) -> int | None:
    """The most memory, in bytes, that a process of its own holds in three steps; on CUDA, of the GPU.

    None where the machine does not tell it.
    """
    command = [sys.executable, "-m", "couce.train.figures.steps", *map(str, case), row]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (this module)
    if done.returncode:
        raise CouceError(f"a step of {row} failed: {(done.stderr.splitlines() or [''])[-1]}")
    return int(done.stdout) or None


def _print_peak(case: Case, row: str) -> None:
    step = Bench(case).step(row)
    for _ in range(3):
        step()
    if case.device.startswith("cuda"):
        print(torch.cuda.max_memory_allocated())
        return
    status = Path("/proc/self/status")  # Linux only
    text = status.read_text() if status.exists() else ""
    print(int(text.split("VmHWM:")[1].split()[0]) * 1024 if "VmHWM:" in text else 0)


if __name__ == "__main__":
    backbone, batch, pixels, device, row = sys.argv[1:]
    _print_peak(Case(backbone, int(batch), int(pixels), device), row)
