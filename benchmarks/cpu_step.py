"""Measures two optimisations of a training step on a CPU, with the `cpu` preset.

    python benchmarks/cpu_step.py [--steps 10] [--rounds 3]

A step is forward, backward and Adam of mobilenet_v2 at 128 pixels, with stage1 frozen and a batch
of 120. It is measured in three cases: as torch does it; with freed memory kept
(`couce.machine.allocator`); and also with the BatchNorm of the frozen stage folded into its
convolutions (`couce.backbones.folding`). `couce train` uses both. Keeping memory affects the whole
process, so each case runs in a separate process. The cases take turns.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

CASES = {
    "torch as it is": (False, False),
    "freed memory kept": (True, False),
    "and stage1 folded": (True, True),
}
BATCH = 120


def measure(kept: bool, folded: bool, steps: int) -> dict[str, float]:
    import torch

    from couce.backbones.folding import frozen
    from couce.machine.allocator import keep_freed_memory
    from couce.train.loop import network_of
    from couce.train.settings import resolve

    if kept:
        keep_freed_memory()
    torch.manual_seed(0)
    settings = resolve("cub", "cpu", options={"weights": "none"})
    network, preprocess = network_of(settings)
    network.to(memory_format=torch.channels_last).eval()  # BatchNorm is frozen
    network.backbone.stage1.requires_grad_(False)
    stage1 = frozen(network.backbone.stage1) if folded else network.backbone.stage1
    images = torch.randn(BATCH, 3, preprocess.crop, preprocess.crop)
    images = images.contiguous(memory_format=torch.channels_last)
    optimiser = torch.optim.Adam(network.parameters(), 1e-4)

    def step() -> None:
        network.tail(stage1(images)).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    for _ in range(2):
        step()
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(steps):
        step()
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    return {
        "images/s": steps * BATCH / seconds,
        "faults": (after.ru_minflt - before.ru_minflt) / steps,
        "peak": after.ru_maxrss / 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10, help="steps that a process measures")
    parser.add_argument("--rounds", type=int, default=3, help="processes for each case")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(*CASES[arguments.case], arguments.steps)))
        return
    found: dict[str, list[dict[str, float]]] = {case: [] for case in CASES}
    for _ in range(arguments.rounds):
        for case, runs in found.items():
            command = [sys.executable, __file__, "--case", case, "--steps", str(arguments.steps)]
            runs.append(json.loads(subprocess.check_output(command)))
    base = [run["images/s"] for run in found["torch as it is"]]
    print(f"{'':20}{'images/s':>10}{'ratio':>8}{'page faults a step':>20}{'peak MB':>9}")
    for case, runs in found.items():
        rates = [run["images/s"] for run in runs]
        ratio = statistics.median(a / b for a, b in zip(rates, base, strict=True))
        faults, peak = (statistics.median(run[k] for run in runs) for k in ("faults", "peak"))
        print(f"{case:20}{statistics.median(rates):10.1f}{ratio:8.2f}{faults:20.0f}{peak:9.0f}")


if __name__ == "__main__":
    main()
