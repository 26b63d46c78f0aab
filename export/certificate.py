"""The zero-overhead certificate: compares an exported model with its architecture without CouCE.

The paper claims that the method adds nothing to inference. The certificate proves this for one
file. Its graph is compared node by node with that of a network trained with the base loss alone.
The other rows of the paper's inference table are compared as well: +ODBA, +MSRCI, and CouCE with
dictionaries of 512 to 8192 rows. A graph that differs is an error.

All models are timed in turn, and the certificate shows the spread of the times. Equal graphs do
equal work, so the times differ only by the noise of the machine. To show how large this noise is,
the base model is opened a second time and compared with itself.
"""

import html
import json
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch

from couce.backbones import build_backbone
from couce.checkpoint import describe_network, load_network, save
from couce.errors import CouceError
from couce.export.graph import Input, to_onnx
from couce.export.parity import open_session
from couce.export.structure import GraphStructure, differences, structure
from couce.losses import LOSSES
from couce.machine.timing import compare_times, time_in_turn
from couce.method import CouCE, MethodSettings
from couce.method.ablations import overhead_rows
from couce.network import EmbeddingNetwork
from couce.preprocess import Preprocess

log = logging.getLogger(__name__)

CONTROL = "base, opened again"
ROWS = overhead_rows((512, 1024, 2048, 4096, 8192))


class Row(NamedTuple):
    name: str
    structure: GraphStructure
    ms: float  # the median time of a batch
    ratio: float  # the median over the turns of its time divided by that of base
    low: float  # the 95 % interval of this median
    high: float
    left_out: int  # how many numbers of the checkpoint (its objective) the model does not have


def certify(
    path: Path,
    proto: onnx.ModelProto,
    content: Mapping[str, Any],
    preprocess: Preprocess,
    kind: Input,
    folder: Path,
    rounds: int = 40,
    batch: int = 1,
) -> list[Row]:
    """Compares ``proto``, exported from the checkpoint ``content`` to ``path``, with all ROWS.

    The network of each row is trained for one step, saved to ``folder`` and exported.
    """
    names = [path.name, *ROWS]  # a list, because the file may have the name of a row
    protos, left_out = [proto], [_numbers(content.get("objective", {}))]
    for name, settings in ROWS.items():
        log.info("exporting %s", name)
        checkpoint = _train_one_step(folder / "row.pt", content["model"], settings)
        network, row_preprocess, row = load_network(checkpoint)
        protos.append(to_onnx(network, row_preprocess, kind))
        left_out.append(_numbers(row["objective"]))
    base = 1 + list(ROWS).index("base")
    names.append(CONTROL)
    protos.append(protos[base])
    left_out.append(left_out[base])
    structures = [structure(each) for each in protos]
    for name, each in zip(names, structures, strict=True):
        if found := differences(each, structures[base]):
            raise CouceError(
                f"no certificate: the graph of {name} is not that of the base model"
                f" ({'; '.join(found)}); export without --certify"
            )
    log.info("timing %d models in turn", len(protos))
    times = time_models(protos, preprocess, kind, rounds, batch)
    return [
        Row(name, structures[n], *compare_times(times[n], times[base]), left_out[n])
        for n, name in enumerate(names)
    ]


def time_models(
    protos: Sequence[onnx.ModelProto],
    preprocess: Preprocess,
    kind: Input,
    rounds: int,
    batch: int,
) -> list[list[float]]:
    """The seconds that each model takes for the same batch. The order changes with every turn.

    Each session has one thread. With more, the idle threads of the other sessions would take time
    from the one that runs.
    """
    sessions = [open_session(proto, threads=1) for proto in protos]
    rng = np.random.default_rng(0)
    crop = preprocess.crop
    pixels = rng.integers(0, 256, (batch, crop, crop, 3), np.uint8)
    feed = pixels if kind == "uint8" else np.moveaxis(pixels, -1, 1).astype(np.float32) / 255
    calls = [partial(session.run, None, {"image": feed}) for session in sessions]
    return [times.wall for times in time_in_turn(calls, rounds, warm_up=2)]


def _train_one_step(path: Path, model: Mapping[str, Any], settings: Mapping[str, Any]) -> Path:
    """Writes a checkpoint of this architecture after one step with this method.

    All starting weights are random, including biases and statistics. In a fresh network, these are
    exactly zero or one, and the exporter would then leave out nodes that a trained network has.
    """
    torch.manual_seed(0)
    backbone = build_backbone(model["backbone"], model["split"])
    network = EmbeddingNetwork(backbone, model["dim"], model["pooling"])
    preprocess = Preprocess.from_dict(model["preprocess"])
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if tensor.is_floating_point() and tensor.dim() == 1:
                tensor.uniform_(0.5, 1.5) if name.endswith("var") else tensor.normal_(0.1, 0.1)
    loss = LOSSES["proxy-an"](num_classes=2, dim=network.dim)
    objective = CouCE(loss, MethodSettings.parse(settings))
    optimiser = torch.optim.Adam([*network.parameters(), *objective.parameters()], lr=1e-4)
    images = torch.randn(4, 3, preprocess.crop, preprocess.crop)
    m, m_tilde = network.views(images, objective.intervention)
    objective(m, torch.tensor([0, 0, 1, 1]), m_tilde).total.backward()
    optimiser.step()
    content = {
        "model": describe_network(network, preprocess),
        "network": network.state_dict(),
        "objective": objective.state_dict(),
    }
    save(path, content)
    return path


def _numbers(state: Mapping[str, torch.Tensor]) -> int:
    return sum(tensor.numel() for tensor in state.values())


def to_json(rows: Sequence[Row], sha256: str, batch: int, rounds: int) -> str:
    import onnxruntime

    content = {
        "claim": "the exported graph is that of the same architecture trained without CouCE",
        "model": rows[0].name,
        "sha256": sha256,
        "onnxruntime": onnxruntime.__version__,
        "batch": batch,
        "turns": rounds,
        "rows": [
            {
                **row._asdict(),
                "structure": {
                    "sha256": row.structure.digest,
                    "nodes": len(row.structure.nodes),
                    "parameters": row.structure.parameters,
                    "flops": row.structure.flops,
                },
            }
            for row in rows
        ],
    }
    return json.dumps(content, indent=2) + "\n"


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Certificate of {model}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; }}
body {{ max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; }} td, th {{ padding: .3rem .8rem; text-align: right; }}
td:first-child, th:first-child {{ text-align: left; }} tr {{ border-bottom: 1px solid #8884; }}
code {{ overflow-wrap: anywhere; }} :root {{ color-scheme: light dark; }}
</style>
<h1>Nothing of CouCE is left in {model}</h1>
<p>The graph of this model was compared node by node with that of the same architecture trained with
the base loss alone: operators, attributes, shapes, connections, {parameters:,} parameters, and
{mega:,.1f} million operations for each image. <strong>They are identical</strong> ({nodes} entries,
sha256 <code>{digest}</code>). The graphs of the paper's other rows are identical as well.</p>
<table><tr><th>trained with</th><th>left out at export</th><th>ms</th><th>time / base</th>
<th>95 % interval</th></tr>
{rows}
</table>
<p>Left out at export: how many numbers (dictionary, its statistics, proxies) are in the checkpoint
but not in the model. Times: medians of {turns} turns with a batch size of {batch}. All models take
turns in one process with one thread. The graphs are identical, so a ratio other than 1 is noise of
the machine. The last row shows how large this noise is: it compares base with itself.</p>
<p>The sha256 of the file: <code>{sha256}</code>.</p>
</html>
"""


def to_page(rows: Sequence[Row], sha256: str, batch: int, rounds: int) -> str:
    first = rows[0]
    return _PAGE.format(
        model=html.escape(first.name),
        parameters=first.structure.parameters,
        mega=first.structure.flops / 1e6,
        nodes=len(first.structure.nodes),
        digest=first.structure.digest,
        rows="\n".join(
            f"<tr><td>{html.escape(row.name)}</td><td>{row.left_out:,}</td><td>{row.ms:.2f}</td>"
            f"<td>{row.ratio:.3f}</td><td>{row.low:.3f} – {row.high:.3f}</td></tr>"
            for row in rows
        ),
        turns=rounds,
        batch=batch,
        sha256=sha256,
    )
