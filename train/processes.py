"""The processes of torchrun: which share of a batch each one works on, and how it is gathered."""

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
    """The processes of this run. A single process has the whole batch and waits for no other."""

    def __init__(self) -> None:
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        if self.count > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")

    @property
    def leads(self) -> bool:
        """Whether this is the leading process, which evaluates and writes files."""
        return self.rank == 0

    def device(self, wanted: str) -> torch.device:
        """The device of this process. With several GPUs, each process has its own."""
        return choose_device(wanted, self.local_rank)

    def share(self, batch: int) -> slice:
        """The part of a batch that this process works on."""
        if batch % self.count:
            raise CouceError(
                f"a batch of {batch} images cannot be divided evenly among {self.count} processes;"
                " change batch_classes or batch_images"
            )
        each = batch // self.count
        return slice(self.rank * each, (self.rank + 1) * each)

    def gather(self, x: Tensor) -> Tensor:
        """The rows of all processes in order of rank. Gradients flow to this process's own rows."""
        return x if self.count == 1 else _Gather.apply(x, self.rank, self.count)

    def wait(self) -> None:
        if self.count > 1:
            dist.barrier()

    @contextmanager
    def leader_first(self) -> Iterator[None]:
        """The other processes enter after the leading process has left."""
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

    Each process then computes the same loss of the whole batch. So the gradient of its own rows is
    complete and needs no communication. DistributedDataParallel averages the gradients of the
    processes, although they are parts of a sum. The factor ``count`` makes up for this.
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
