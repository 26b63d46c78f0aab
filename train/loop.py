"""The training loop, for a single process and for torchrun.

The weights, the seed, the epoch and the step determine everything that a step does: which images it
takes, where it crops them and how MSRCI changes them. So a killed run continues from its last
complete epoch and ends with the same weights as a run that was never killed.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from couce import checkpoint, plugins
from couce.backbones.folding import frozen
from couce.data.images import ImageStore
from couce.errors import CouceError
from couce.evaluate import evaluate_network
from couce.losses import build_loss
from couce.method import CouCE
from couce.method.msrci import MSRCI
from couce.network import EmbeddingNetwork, Normalise, build_network
from couce.preprocess import Preprocess
from couce.train.batches import Objects, balanced_epoch, training_batches
from couce.train.objects import object_maps
from couce.train.processes import Processes
from couce.train.settings import TrainSettings


def network_of(settings: TrainSettings) -> tuple[EmbeddingNetwork, Preprocess]:
    """The network with the starting weights of a run, and its preprocessing."""
    return build_network(
        settings.backbone,
        settings.split,
        settings.weights,
        settings.dim,
        settings.pooling,
        settings.resize,
        settings.crop,
    )


class Step(NamedTuple):
    epoch: int  # from 1
    step: int  # from 1
    steps: int  # of this epoch
    images: int
    total: float
    parts: dict[str, float]


class Epoch(NamedTuple):
    epoch: int  # from 1
    lr: float
    parts: dict[str, float]  # means over the epoch
    metrics: dict[str, float]  # of the classes that choose the best epoch; empty if not evaluated
    best: bool  # whether this is the best epoch so far


class Training:
    """The state that a checkpoint holds, and the training loop."""

    def __init__(
        self,
        settings: TrainSettings,
        train: ImageStore,
        chooser: ImageStore,
        folder: Path,
        processes: Processes,
        # The arguments that open the data set again; they are kept in the checkpoint.
        data: Mapping[str, Any] | None = None,
    ) -> None:
        self.settings, self.train, self.chooser = settings, train, chooser
        self.data = dict(data or {})
        self.folder, self.processes = folder, processes
        self.device = processes.device(settings.device)
        torch.manual_seed(settings.seed)
        self.network = network_of(settings)[0].on(self.device)
        self.objects = self._objects()
        self.views = Views(self.network)
        if settings.compile:
            # Once is enough: torch compiles again by itself when an epoch changes the module.
            self.views.compile()
        self.average: AveragedModel | None = None
        if settings.average:
            span = settings.average * settings.epochs * len(self._plan(0))  # steps
            mean = get_ema_multi_avg_fn(1 - 1 / max(1.0, span))
            self.average = AveragedModel(self.network, multi_avg_fn=mean, use_buffers=True)
        classes = len(train.split.names)
        loss = build_loss(settings.loss, classes, settings.dim, **settings.loss_options)
        self.objective = CouCE(loss, settings).to(self.device)
        groups: list[dict[str, Any]] = [
            {"params": list(self.network.parameters()), "weight_decay": settings.weight_decay},
            {"params": list(self.objective.parameters())},
        ]
        self.optimiser = torch.optim.Adam(groups)
        self.half = _half_type(self.device)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.half == torch.float16)
        self.epoch = 0  # the number of complete epochs
        self.best = {"epoch": 0, "R@1": -1.0}

    def __iter__(self) -> Iterator[Step | Epoch]:
        """Trains from the first incomplete epoch to the last, and yields each step and epoch."""
        settings, labels = self.settings, self.train.split.labels
        normalise = Normalise(self.train.preprocess).to(self.device)
        for epoch in range(self.epoch, settings.epochs):
            views = self._prepare(epoch)
            plan = self._plan(epoch)
            share = self.processes.share(len(plan[0]))
            batches = training_batches(
                self.train, labels, plan, settings.seed, epoch, share, self.objects
            )
            sums: dict[str, float] = {}
            for step, batch in enumerate(batches):
                factors = self._factors(len(plan[step]), epoch, step, share)
                with torch.autocast(self.device.type, self.half, enabled=self.half is not None):
                    m, m_tilde = views(normalise(self._moved(batch.pixels)), factors)
                gather = self.processes.gather
                total, parts = self.objective(
                    gather(m),
                    gather(self._moved(batch.labels)),
                    None if m_tilde is None else gather(m_tilde),
                )
                values = {name: part.item() for name, part in parts.items()}
                if not math.isfinite(total.item()):
                    raise CouceError(self._not_finite(epoch, step, values))
                self.optimiser.zero_grad(set_to_none=True)
                self.scaler.scale(total).backward()
                self.scaler.unscale_(self.optimiser)
                for group in self.optimiser.param_groups:
                    nn.utils.clip_grad_value_(group["params"], settings.clip)
                self.scaler.step(self.optimiser)
                self.scaler.update()
                if self.average is not None:
                    self.average.update_parameters(self.network)
                for name, value in values.items():
                    sums[name] = sums.get(name, 0.0) + value / len(plan)
                yield Step(epoch + 1, step + 1, len(plan), len(plan[step]), total.item(), values)
            self.epoch = epoch + 1
            yield self._finish(sums)

    def _objects(self) -> Objects | None:
        """Where the objects are, by the starting weights; None if no background is replaced."""
        settings = self.settings.backgrounds
        if not settings.share:
            return None
        network = None if self.settings.weights == "none" else self.network
        with self.processes.leader_first():
            maps = object_maps(
                settings.objects, network, self.train, self.folder.parent / "cache", self.device
            )
        return Objects(maps, settings.share)

    def _plan(self, epoch: int) -> list[NDArray[np.intp]]:
        labels, settings = self.train.split.labels, self.settings
        return balanced_epoch(
            labels, settings.batch_classes, settings.batch_images, settings.seed, epoch
        )

    def _prepare(self, epoch: int) -> nn.Module:
        """Sets learning rates and what is frozen in this epoch. Returns the module to train."""
        settings, backbone = self.settings, self.network.backbone
        decay = settings.lr_gamma ** (epoch // settings.lr_step)
        for group, rate in zip(
            self.optimiser.param_groups, (settings.lr, settings.proxy_lr), strict=True
        ):
            group["lr"] = rate * decay
        backbone.requires_grad_(epoch >= settings.warmup)
        if settings.freeze == "stage1":
            backbone.stage1.requires_grad_(False)
        self.network.train()
        self.objective.train()
        if settings.freeze == "stage1":
            backbone.stage1.eval()
        if settings.freeze_statistics:
            backbone.eval()  # in a backbone, this changes BatchNorm alone
        self.views.intervention = self.objective.intervention
        self.views.mixed = self.objective.mixed
        if settings.freeze == "stage1":
            self.views.stage1 = frozen(backbone.stage1)
        if self.processes.count > 1:
            return DistributedDataParallel(self.views)
        return self.views

    def _factors(self, batch: int, epoch: int, step: int, share: slice) -> Tensor | None:
        """MSRCI's random factors. They are drawn for the whole batch; a process uses its share."""
        msrci = self.objective.intervention
        if msrci is None:
            return None
        seeds = np.random.SeedSequence((self.settings.seed, epoch, 2, step))
        generator = torch.Generator().manual_seed(int(seeds.generate_state(1)[0]))
        factors = msrci.draw(batch, self.network.backbone.split_channels, generator)
        return (factors if len(factors) == 1 else factors[share]).to(self.device)

    def _moved(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor

    def _finish(self, parts: dict[str, float]) -> Epoch:
        """The leading process evaluates and saves. The other processes wait for it."""
        metrics: dict[str, float] = {}
        best = False
        if self.processes.leads:
            every = self.settings.evaluate_every
            if self.epoch % every == 0 or self.epoch == self.settings.epochs:
                metrics = evaluate_network(self.result, self.chooser, self.device)
                best = metrics["R@1"] > self.best["R@1"]
            if best:
                self.best = {"epoch": self.epoch, **metrics}
                checkpoint.save(self.folder / "best.pt", self.state(metrics))
            checkpoint.save(self.folder / "last.pt", self.state(metrics))
        self.processes.wait()
        return Epoch(self.epoch, self.optimiser.param_groups[0]["lr"], parts, metrics, best)

    @property
    def result(self) -> EmbeddingNetwork:
        """The network that is evaluated, saved and exported: the running mean, if there is one."""
        return self.network if self.average is None else cast(EmbeddingNetwork, self.average.module)

    def state(self, metrics: dict[str, float]) -> dict[str, Any]:
        return {
            "model": checkpoint.describe_network(self.network, self.train.preprocess),
            "settings": self.settings.model_dump(mode="json"),
            "data": self.data,
            "plugins": plugins.loaded(),
            "classes": list(self.train.split.names),
            "epoch": self.epoch,
            "metrics": metrics,
            "best": self.best,
            "network": self.result.state_dict(),
            "learning": None if self.average is None else self.network.state_dict(),
            "objective": self.objective.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def resume(self, content: dict[str, Any]) -> None:
        """Continues from the content of a checkpoint, as :meth:`state` returned it."""
        if content["classes"] != list(self.train.split.names):
            raise CouceError(
                "the checkpoint was trained on other classes than this data set has; give the"
                " folder of its own data set with --data"
            )
        self.network.load_state_dict(content.get("learning") or content["network"])
        if self.average is not None:
            self.average.module.load_state_dict(content["network"])
            # With 0, the next update would only copy the weights. All other numbers are equivalent.
            self.average.n_averaged.fill_(1)
        self.objective.load_state_dict(content["objective"])
        self.optimiser.load_state_dict(content["optimiser"])
        self.scaler.load_state_dict(content["scaler"])
        self.epoch, self.best = content["epoch"], content["best"]

    def _not_finite(self, epoch: int, step: int, parts: dict[str, float]) -> str:
        last = self.folder / "last.pt"
        listed = ", ".join(f"{name} {value:g}" for name, value in parts.items())
        kept = f"the last good checkpoint is {last}" if last.exists() else "no epoch was completed"
        return (
            f"the loss is not finite in epoch {epoch + 1}, step {step + 1} ({listed}); {kept};"
            " lower lr or proxy_lr"
        )


class Views(nn.Module):
    """Computes both views of a batch in one ``forward``, as DistributedDataParallel requires."""

    def __init__(self, network: EmbeddingNetwork) -> None:
        super().__init__()
        self.network = network
        self.stage1: Callable[[Tensor], Tensor] = network.backbone.stage1.forward
        self.intervention: MSRCI | None = None
        self.mixed = False

    def forward(self, images: Tensor, factors: Tensor | None) -> tuple[Tensor, Tensor | None]:
        msrci, maps = self.intervention, self.stage1(images)
        if msrci is None or factors is None:
            return self.network.tail_views(maps, None)
        return self.network.tail_views(
            maps, lambda clean: msrci.apply_factors(clean, factors), self.mixed
        )


def _half_type(device: torch.device) -> torch.dtype | None:
    """The type of autocast on CUDA. None on a CPU, where bfloat16 crashes on some machines."""
    if device.type != "cuda":
        return None
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
