"""The rows of the paper's ablation tables: which parts of the method each of them leaves out."""

from typing import Any

_OFF = {"weight": 0.0}

# For each row, the settings that differ from those of the whole method.
ABLATIONS: dict[str, dict[str, Any]] = {
    "base": {"odba": _OFF, "msrci": _OFF, "covariance": _OFF},
    "odba": {"msrci": _OFF, "covariance": _OFF},
    "msrci": {"odba": _OFF, "covariance": _OFF},
    "odba+msrci": {"covariance": _OFF},
    "couce": {},
}


def overhead_rows(capacities: tuple[int, ...]) -> dict[str, dict[str, Any]]:
    """The rows of the paper's tables of overhead: single parts, then the whole method for each K.

    >>> list(overhead_rows((512, 2048)))
    ['base', '+ ODBA', '+ MSRCI', 'CouCE, K = 512', 'CouCE, K = 2048']
    """
    return {
        "base": ABLATIONS["base"],
        "+ ODBA": ABLATIONS["odba"],
        "+ MSRCI": ABLATIONS["msrci"],
        **{f"CouCE, K = {k}": {"odba": {"capacity": k}} for k in capacities},
    }
