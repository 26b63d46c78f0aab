"""Proxy losses by name. To add one, write a :class:`ProxyLoss` and add a line to this table."""

from inspect import signature

from couce.errors import unknown_name
from couce.losses.base import ProxyLoss
from couce.losses.proxy_an import ProxyAN
from couce.losses.proxy_anchor import ProxyAnchor
from couce.losses.proxy_nca import ProxyNCA
from couce.losses.soft_triple import SoftTriple
from couce.plugins import find

LOSSES: dict[str, type[ProxyLoss]] = {
    "proxy-an": ProxyAN,
    "proxy-anchor": ProxyAnchor,
    "proxy-nca": ProxyNCA,
    "soft-triple": SoftTriple,
}

__all__ = ["LOSSES", "ProxyAN", "ProxyAnchor", "ProxyLoss", "ProxyNCA", "SoftTriple", "build_loss"]


def build_loss(name: str, num_classes: int, dim: int, **options: float) -> ProxyLoss:
    """The loss with this name. ``options`` are its constants, such as ``alpha=32``.

    An unknown name or option is an error that lists the known ones.
    """
    loss: type[ProxyLoss] = find("loss", name, LOSSES)
    known = list(signature(loss).parameters)[2:]
    for option in options:
        if option not in known:
            raise unknown_name(f"option of {name}", option, known)
    return loss(num_classes=num_classes, dim=dim, **options)
