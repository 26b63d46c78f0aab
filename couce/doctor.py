"""What is installed here and what really works: asked of the libraries, not of their lists."""

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from couce import __version__

# Each row of packages installs the same module: two of them overwrite each other's files.
_RIVALS = (
    ("onnxruntime", "onnxruntime-gpu"),
    ("faiss-cpu", "faiss-gpu", "faiss-gpu-cuvs"),
)

# An ONNX model of one Identity node, enough to ask a session what it runs on. Serving has no onnx
# to write one with; tests/test_doctor.py writes it anew and compares.
IDENTITY_MODEL = bytes.fromhex(
    "08083a370a100a017812017922084964656e746974791201675a0f0a0178120a0a08080112040a020801"
    "620f0a0179120a0a08080112040a02080142040a00100d"
)


@dataclass
class Report:
    facts: list[tuple[str, str]] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)  # what would make more possible
    problems: list[str] = field(default_factory=list)  # what must be mended


def examine() -> Report:
    """Looks at everything; a library that is missing or broken is a line, never an exception."""
    report = Report()
    report.facts.append(("couce", __version__))
    report.facts.append(("python", f"{platform.python_version()} on {platform.platform()}"))
    report.facts.append(("cores", str(_cores())))
    report.problems += conflicts(installed())
    for name, look in (("onnxruntime", _onnxruntime), ("faiss", _faiss), ("torch", _torch)):
        try:
            report.facts.append((name, look(report)))
        except ImportError as error:
            report.facts.append((name, "not installed"))
            if error.name not in (name, None):
                report.problems.append(f"{name} is installed but cannot be imported: {error}")
        except Exception as error:  # a broken installation raises anything
            report.facts.append((name, "broken"))
            report.problems.append(f"{name} does not work: {error}")
    return report


def _cores() -> int:
    """The cores that this process may use, where the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def installed() -> dict[str, str]:
    """Installed distributions and their versions, by lower-case name with dashes."""
    return {
        dist.name.lower().replace("_", "-"): dist.version
        for dist in metadata.distributions()
        if dist.name
    }


def conflicts(packages: Mapping[str, str]) -> list[str]:
    """What cannot work together among installed packages (name to version).

    >>> conflicts({"onnxruntime-gpu": "1.26.0", "faiss-gpu": "1.15.1"})
    []
    >>> len(conflicts({"onnxruntime-gpu": "1.28.0", "faiss-cpu": "1.15.1", "faiss-gpu": "1.15.1"}))
    2
    """
    found = []
    for rivals in _RIVALS:
        present = [name for name in rivals if name in packages]
        if len(present) > 1:
            found.append(
                f"{' and '.join(present)} overwrite each other: uninstall"
                f" {'both' if len(present) == 2 else 'all'}, then install one of"
                " couce[cpu], couce[gpu], couce[gpu-cu13]"
            )
    majors = _cuda_majors(packages)
    if len(set(majors.values())) > 1:
        listed = ", ".join(f"{name} is built for CUDA {major}" for name, major in majors.items())
        found.append(f"{listed}: install couce[gpu] (CUDA 12) or couce[gpu-cu13] alone")
    return found


def _cuda_majors(packages: Mapping[str, str]) -> dict[str, int]:
    majors = {}
    if "onnxruntime-gpu" in packages:
        major, minor = (int(part) for part in packages["onnxruntime-gpu"].split(".")[:2])
        majors["onnxruntime-gpu"] = 12 if (major, minor) < (1, 27) else 13
    if "faiss-gpu" in packages:
        majors["faiss-gpu"] = 12
    if "faiss-gpu-cuvs" in packages:
        majors["faiss-gpu-cuvs"] = 13
    return majors


def _onnxruntime(report: Report) -> str:
    import onnxruntime

    # A list of compiled-in providers says nothing: a session asked for CUDA silently runs on the
    # CPU where CUDA is missing. So a session is opened and asked.
    providers = [
        name
        for name in onnxruntime.get_available_providers()
        if name not in ("CPUExecutionProvider", "AzureExecutionProvider")
    ]
    working = [name for name in providers if name in _session_providers(onnxruntime, name)]
    failing = [name for name in providers if name not in working]
    session = _session_providers(onnxruntime, "CPUExecutionProvider")
    for provider in failing:
        report.problems.append(
            f"onnxruntime has {provider} but a session falls back to the CPU: its CUDA libraries"
            " or driver are missing or of another version"
        )
    if not providers:
        report.advice.append("for a GPU: install couce[gpu-cu13] (CUDA 13) or couce[gpu] (CUDA 12)")
    return f"{onnxruntime.__version__}, runs on {', '.join([*working, *session])}"


def _session_providers(onnxruntime: Any, provider: str) -> list[str]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # a provider that fails to load is what is being found out
    wanted = list(dict.fromkeys([provider, "CPUExecutionProvider"]))
    session = onnxruntime.InferenceSession(IDENTITY_MODEL, options, providers=wanted)
    return session.get_providers()


def _faiss(report: Report) -> str:
    import faiss

    gpus = faiss.get_num_gpus() if hasattr(faiss, "get_num_gpus") else 0
    if "faiss-cpu" not in installed() and not gpus:
        report.advice.append("this faiss is built for GPUs but sees none; it works on the CPU")
    return f"{faiss.__version__}, {gpus} GPUs"


def _torch(report: Report) -> str:
    try:
        import torch
    except ModuleNotFoundError:
        report.advice.append("for training and export: install couce[train]")
        raise
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    return f"{torch.__version__} ({build}), trains on {', '.join(devices) or 'the CPU'}"
