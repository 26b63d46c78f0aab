"""One process or several (torchrun): who works on what, and how the batch is gathered."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from couce.errors import CouceError
from couce.machine.device import choose_device


class Processes:
    """The processes of this run. Alone, every method does nothing."""

    def __init__(self) -> None:
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        if self.count > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")

    @property
    def leads(self) -> bool:
        """Whether this is the one that writes and evaluates."""
        return self.rank == 0

    def device(self, wanted: str) -> torch.device:
        """The device of this process: on a machine with several GPUs, each process has its own."""
        return choose_device(wanted, self.local_rank)

    def share(self, batch: int) -> slice:
        """The part of a batch that this process works on."""
        if batch % self.count:
            raise CouceError(
                f"a batch of {batch} cannot be shared by {self.count} processes;"
                " change batch_classes or batch_images"
            )
        each = batch // self.count
        return slice(self.rank * each, (self.rank + 1) * each)

    def gather(self, x: Tensor) -> Tensor:
        """The rows of all processes in order of rank, with gradients to where they came from."""
        return x if self.count == 1 else _Gather.apply(x, self.rank, self.count)

    def wait(self) -> None:
        if self.count > 1:
            dist.barrier()

    @contextmanager
    def leader_first(self) -> Iterator[None]:
        """The others enter when the leading process has left."""
        if not self.leads:
            self.wait()
        yield
        if self.leads:
            self.wait()

    def close(self) -> None:
        if self.count > 1 and dist.is_initialized():
            dist.destroy_process_group()


class _Gather(torch.autograd.Function):
    """Concatenates the rows of all processes.

    Each of them goes on to compute the same loss of the whole batch, so its own rows' gradient is
    complete and needs no communication. DistributedDataParallel then averages what are parts of a
    sum: hence the factor.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, rank: int, count: int) -> Tensor:
        ctx.own, ctx.count = slice(rank * len(x), (rank + 1) * len(x)), count
        rows = [torch.empty_like(x) for _ in range(count)]
        dist.all_gather(rows, x.contiguous())
        return torch.cat(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[ctx.own] * ctx.count, None, None
