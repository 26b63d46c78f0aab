"""One training step for each row of the paper's table of overhead, to measure time and memory."""

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
    """A network and a batch of noise. The rows train it in turn, each with its own objective."""

    def __init__(self, case: Case) -> None:
        if case.batch < 2 * _IMAGES_A_CLASS:
            raise CouceError(
                f"a batch needs at least two classes of 3 images each, so {2 * _IMAGES_A_CLASS}"
                f" images, not {case.batch}"
            )
        torch.manual_seed(0)
        self.device = choose_device(case.device)
        self.network = EmbeddingNetwork(build_backbone(case.backbone)).on(self.device)
        self.optimiser = torch.optim.Adam(self.network.parameters(), lr=1e-4)
        images = torch.randn(case.batch, 3, case.pixels, case.pixels, device=self.device)
        self.images = images.to(memory_format=torch.channels_last)
        self.labels = torch.arange(case.batch, device=self.device) // _IMAGES_A_CLASS % _CLASSES

    def step(self, row: str) -> Callable[[], None]:
        """Returns a function that does one step of ``row``, with a full dictionary.

        A step is forward, loss, backward and Adam.
        """
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
        """Computes the embeddings of the batch, which is the same for every row."""
        self.network.eval()
        with torch.inference_mode():
            self.network(self.images)
        self._wait()

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def operations(step: Callable[[], None]) -> int:
    """The floating-point operations of a step's matrix products and convolutions, both ways."""
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def peak_memory(case: Case, row: str) -> int | None:
    """The peak memory in bytes of a separate process that does three steps. None if unknown.

    On CUDA, it is the memory of the GPU.
    """
    command = [sys.executable, "-m", "couce.train.figures.steps", *map(str, case), row]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (ours)
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
    status = Path("/proc/self/status")  # exists on Linux only
    text = status.read_text() if status.exists() else ""
    print(int(text.split("VmHWM:")[1].split()[0]) * 1024 if "VmHWM:" in text else 0)


if __name__ == "__main__":
    backbone, batch, pixels, device, row = sys.argv[1:]
    _print_peak(Case(backbone, int(batch), int(pixels), device), row)
