"""Proxy losses by name. Another one is a :class:`ProxyLoss` of its own and a line in this table."""

from couce.losses.base import ProxyLoss
from couce.losses.proxy_an import ProxyAN
from couce.losses.proxy_anchor import ProxyAnchor
from couce.losses.proxy_nca import ProxyNCA
from couce.losses.soft_triple import SoftTriple

LOSSES: dict[str, type[ProxyLoss]] = {
    "proxy-an": ProxyAN,
    "proxy-anchor": ProxyAnchor,
    "proxy-nca": ProxyNCA,
    "soft-triple": SoftTriple,
}

__all__ = ["LOSSES", "ProxyAN", "ProxyAnchor", "ProxyLoss", "ProxyNCA", "SoftTriple", "build_loss"]


def build_loss(name: str, num_classes: int, dim: int) -> ProxyLoss:
    """The loss of that name with its default constants; an unknown name's error lists the known."""
    from couce.errors import unknown_name

    if name not in LOSSES:
        raise unknown_name("loss", name, LOSSES)
    return LOSSES[name](num_classes=num_classes, dim=dim)
