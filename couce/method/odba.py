"""ODBA: orthogonal dictionary-based backdoor adjustment.

Paper, Sec. 3.2, Eq. var_gate to ortho_loss.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from couce.errors import CouceError, unknown_name
from couce.losses.precision import full_precision

Attention = Literal["raw", "unit"]

_EPSILON = 1e-8


class ODBA(nn.Module):
    """A dictionary of background patterns, and a loss that keeps embeddings orthogonal to them.

    :meth:`update` compares, for each channel of the unit-length embeddings, the variance within
    classes with the variance between classes. A channel that varies within classes but not between
    them carries background, so its gate opens: ``w_c = sigmoid(ratio_c − threshold)``. The gated
    embeddings are scaled to unit length and go into a first-in-first-out dictionary.
    :meth:`attend` reads the dictionary by scaled dot-product attention. :meth:`loss` is the mean
    squared cosine between an embedding and the result of its attention.

    The dictionary and all running values are buffers, so they are saved, resumed and moved with
    the module. The dictionary never carries a gradient. With several processes, give each of them
    the batch that was gathered from all. Then each has the same dictionary and gate as a single
    process with the whole batch.

    Args:
        dim: the dimension d of the embeddings.
        capacity: K, the number of rows of the dictionary.
        momentum: μ of the running variances and their ratio. They start with the values of the
            first batch.
        threshold: τ_g, the variance ratio at which a gate is half open.
        inert: δ. The gate of a channel stays closed if the sum of its two variances is at most δ.
        gating: False opens every gate (ablation "without gating").
        detach: False lets gradients flow through the attention weights (ablation "without
            detach").
        attention: the query of the attention: the ``raw`` embedding as in the paper's Eq. attn, or
            the ``unit`` one. The logits of a unit vector are at most 1/√d. The attention is then
            almost uniform and returns the mean of the dictionary.
    """

    dictionary: Tensor  # (K, d), rows of unit length; the first `filled` of them are valid
    pointer: Tensor  # (), the row that is written next
    filled: Tensor  # (), the number of valid rows
    ratio: Tensor  # (d,), running Var_intra / Var_inter
    intra: Tensor  # (d,), running Var_intra
    inter: Tensor  # (d,), running Var_inter
    measured: Tensor  # (), whether the three running values have been set

    def __init__(
        self,
        dim: int,
        capacity: int = 2048,
        momentum: float = 0.999,
        threshold: float = 1.0,
        inert: float = 1e-4,
        *,
        gating: bool = True,
        detach: bool = True,
        attention: Attention = "raw",
    ) -> None:
        super().__init__()
        if capacity < 1 or not 0 <= momentum <= 1:
            raise CouceError(
                f"odba needs a capacity of at least 1 and a momentum from 0 to 1,"
                f" not {capacity} and {momentum}"
            )
        if attention not in ("raw", "unit"):
            raise unknown_name("odba attention", attention, ("raw", "unit"))
        self.capacity = capacity
        self.momentum = momentum
        self.threshold = threshold
        self.inert = inert
        self.gating = gating
        self.detach = detach
        self.attention = attention
        self.register_buffer("dictionary", torch.zeros(capacity, dim))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long))
        self.register_buffer("filled", torch.zeros((), dtype=torch.long))
        for name in ("ratio", "intra", "inter"):
            self.register_buffer(name, torch.zeros(dim))
        self.register_buffer("measured", torch.zeros((), dtype=torch.bool))

    @property
    def gate(self) -> Tensor:
        """W (d,): the gate of each channel, from 0 (semantic or inert) to 1 (background)."""
        if not self.gating:
            return torch.ones_like(self.ratio)
        alive = self.intra + self.inter > self.inert
        return torch.sigmoid(self.ratio - self.threshold) * alive

    @torch.no_grad()
    def update(self, embeddings: Tensor, labels: Tensor) -> None:
        """Measures the batch (N, d) with labels (N,), then enqueues its gated embeddings.

        Embeddings that are not finite, such as those of an overflow in float16, are left out. They
        would spoil the running values for good.
        """
        finite = embeddings.isfinite().all(dim=1)
        embeddings, labels = embeddings[finite], labels[finite]
        unit = F.normalize(embeddings.to(self.dictionary.dtype), dim=1)
        self._measure(unit, labels)
        self._enqueue(unit * self.gate)

    def _measure(self, unit: Tensor, labels: Tensor) -> None:
        variances = class_variances(unit, labels)
        if variances is None:
            return
        intra, inter = variances
        weight = torch.where(self.measured, 1 - self.momentum, 1.0).to(self.ratio.dtype)
        self.ratio.lerp_(intra / (inter + _EPSILON), weight)
        self.intra.lerp_(intra, weight)
        self.inter.lerp_(inter, weight)
        self.measured.fill_(True)

    def _enqueue(self, gated: Tensor) -> None:
        norms = gated.norm(dim=1, keepdim=True)
        # An embedding without an open channel is zero: it has no direction and no background.
        rows = (gated / norms)[norms.squeeze(1) > 0][-self.capacity :]
        places = (self.pointer + torch.arange(len(rows), device=rows.device)) % self.capacity
        self.dictionary[places] = rows
        self.pointer.copy_((self.pointer + len(rows)) % self.capacity)
        self.filled.copy_((self.filled + len(rows)).clamp(max=self.capacity))

    @full_precision
    def attend(self, embeddings: Tensor) -> Tensor:
        """z (N, d): the background that the dictionary gives for each embedding.

        While the dictionary is empty, z is zero.
        """
        query = embeddings.detach() if self.detach else embeddings
        if self.attention == "unit":
            query = F.normalize(query, dim=1)
        atoms = self.dictionary[: int(self.filled)].to(query.dtype)  # (filled, d)
        # The next update overwrites the dictionary, and the backward pass needs the present rows.
        if query.requires_grad:
            atoms = atoms.clone()
        weights = torch.softmax(query @ atoms.T / atoms.shape[1] ** 0.5, dim=1)  # (N, filled)
        return weights @ atoms

    @full_precision
    def loss(self, embeddings: Tensor) -> Tensor:
        """L_orth, the mean of cos²(m, z) over the batch."""
        z = self.attend(embeddings)
        lengths = embeddings.norm(dim=1) * z.norm(dim=1)
        return ((embeddings * z).sum(dim=1) / (lengths + _EPSILON)).square().mean()

    @full_precision
    def project(self, embeddings: Tensor) -> Tensor:
        """m − proj_z m, the hard form of the orthogonality (ablation "hard projection")."""
        z = self.attend(embeddings)
        along = (embeddings * z).sum(dim=1, keepdim=True)
        return embeddings - along / (z.square().sum(dim=1, keepdim=True) + _EPSILON) * z

    def extra_repr(self) -> str:
        capacity, dim = self.dictionary.shape
        return (
            f"dim={dim}, capacity={capacity}, momentum={self.momentum}, threshold={self.threshold},"
            f" inert={self.inert}, gating={self.gating}, detach={self.detach},"
            f" attention={self.attention!r}"
        )


def class_variances(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor] | None:
    """(Var_intra, Var_inter), each (d,), of rows ``x`` (N, d) with ``labels`` (N,).

    Var_intra is the mean squared distance of a row to the mean of its class. Var_inter is the
    variance of the class means around the batch mean, weighted by class size. A class with a
    single row has no variance within the class, so it is left out of both. If fewer than two
    classes are left, there is no variance between classes, and the result is None.

    >>> x = torch.tensor([[0.0], [2.0], [10.0], [12.0], [99.0]])
    >>> class_variances(x, torch.tensor([0, 0, 1, 1, 2]))
    (tensor([1.]), tensor([25.]))
    """
    _, classes, counts = labels.unique(return_inverse=True, return_counts=True)
    several = counts[classes] > 1
    if int((counts > 1).sum()) < 2:
        return None
    x, classes = x[several], classes[several]
    sums = x.new_zeros(len(counts), x.shape[1]).index_add_(0, classes, x)
    means = (sums / counts.unsqueeze(1))[classes]  # (N', d), the mean of each row's own class
    return (x - means).square().mean(dim=0), (means - x.mean(dim=0)).square().mean(dim=0)
