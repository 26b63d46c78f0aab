"""What ODBA and MSRCI add to a training step, beside the bound.

    python benchmarks/train_step.py [--rounds 40]

One step (forward, backward, Adam) of the base loss, + ODBA, + MSRCI and full CouCE, on `tiny` at
batch 120 and on resnet50 at batch 16 and 224 pixels. The four take turns within one process, in
another order each turn, so that the machine's noise meets them alike; the ratio is that of the
medians, of wall-clock time and, beside it, of processor time, which other guests of the machine do
not take from. The bound of MSRCI is 1 + the share of the base step's floating-point operations that stage2
repeats. The peak memory is that of a process of its own that does nothing else.
"""

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from couce.backbones import build_backbone
from couce.losses import LOSSES
from couce.method import CouCE, MethodSettings
from couce.network import EmbeddingNetwork

CASES = {"tiny": (120, 64), "resnet50": (16, 224)}  # backbone: batch, pixels
CLASSES, IMAGES_A_CLASS = 100, 3

OFF = {"weight": 0.0}
METHODS = {
    "base": MethodSettings.parse({"odba": OFF, "msrci": OFF, "covariance": OFF}),
    "+ ODBA": MethodSettings.parse({"msrci": OFF, "covariance": OFF}),
    "+ MSRCI": MethodSettings.parse({"odba": OFF, "covariance": OFF}),
    "CouCE": MethodSettings(),
}


def make_step(backbone: str, method: str) -> Callable[[], None]:
    torch.manual_seed(0)
    batch, pixels = CASES[backbone]
    network = EmbeddingNetwork(build_backbone(backbone)).to(memory_format=torch.channels_last)
    objective = CouCE(LOSSES["proxy-an"](num_classes=CLASSES, dim=network.dim), METHODS[method])
    optimiser = torch.optim.Adam([*network.parameters(), *objective.parameters()], lr=1e-4)
    images = torch.randn(batch, 3, pixels, pixels).to(memory_format=torch.channels_last)
    labels = torch.arange(batch) // IMAGES_A_CLASS
    if objective.odba is not None:  # measured with a full dictionary
        odba = objective.odba
        odba.dictionary.copy_(torch.nn.functional.normalize(torch.randn_like(odba.dictionary)))
        odba.filled.fill_(odba.capacity)

    def step() -> None:
        m, m_tilde = network.views(images, objective.intervention)
        total = objective(m, labels, m_tilde).total
        optimiser.zero_grad()
        total.backward()
        optimiser.step()

    return step


def peak_memory(backbone: str, method: str) -> float:
    """The most memory, in bytes, that a process that does three of these steps ever holds."""
    command = [sys.executable, __file__, "--peak", backbone, method]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_peak(backbone: str, method: str) -> None:
    step = make_step(backbone, method)
    for _ in range(3):
        step()
    status = Path("/proc/self/status").read_text()
    print(int(status.split("VmHWM:")[1].split()[0]) * 1024)


def repeated_share(backbone: str) -> float:
    """How much of the base step's floating-point operations stage2 and the head are."""
    batch, pixels = CASES[backbone]
    network = EmbeddingNetwork(build_backbone(backbone))
    with FlopCounterMode(display=False) as stage1:
        hidden = network.backbone.stage1(torch.randn(batch, 3, pixels, pixels))
    with FlopCounterMode(display=False) as stage2:
        embeddings = network._embed(network.backbone.stage2(hidden))
        gradient = torch.autograd.grad(
            embeddings.sum(), [hidden, *network.backbone.stage2.parameters()], retain_graph=True
        )
    with FlopCounterMode(display=False) as back:
        torch.autograd.grad(hidden, list(network.backbone.stage1.parameters()), gradient[0])
    repeated = stage2.get_total_flops()
    return repeated / (repeated + stage1.get_total_flops() + back.get_total_flops())


def compare(backbone: str, rounds: int) -> None:
    batch, pixels = CASES[backbone]
    steps = {method: make_step(backbone, method) for method in METHODS}
    share = repeated_share(backbone)
    wall: dict[str, list[float]] = {method: [] for method in METHODS}
    cpu: dict[str, list[float]] = {method: [] for method in METHODS}
    # Shuffled, not rotated: what ran before leaves caches and freed memory in its own state.
    shuffle = random.Random(0).sample  # noqa: S311
    for turn in range(rounds + 1):
        for method in shuffle(list(steps), len(steps)):
            start, start_cpu = time.perf_counter(), time.process_time()
            steps[method]()
            if turn:  # the first turn warms up
                wall[method].append(time.perf_counter() - start)
                cpu[method].append(time.process_time() - start_cpu)
    del steps
    print(f"\n{backbone}, batch {batch}, {pixels} pixels, {rounds} turns")
    print(f"{'':9}{'ms':>8}{'ratio':>8}{'of CPU':>8}{'bound':>7}{'ratio/bound':>13}{'peak':>9}")
    for method in METHODS:
        ratio, of_cpu = (
            statistics.median(times[method]) / statistics.median(times["base"])
            for times in (wall, cpu)
        )
        bound = 1 + share if METHODS[method].msrci.weight else 1.0
        peak = peak_memory(backbone, method)
        print(
            f"{method:9}{1e3 * statistics.median(wall[method]):8.1f}{ratio:8.3f}{of_cpu:8.3f}"
            f"{bound:7.3f}{ratio / bound:13.3f}{peak / 1e6:6.0f} MB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--backbone", choices=CASES, action="append", help="only this one")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        print_peak(*arguments.peak)
        return
    for backbone in arguments.backbone or CASES:
        compare(backbone, arguments.rounds)


if __name__ == "__main__":
    main()
