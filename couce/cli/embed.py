from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from couce.preprocess import Preprocess

Preparation = Annotated[
    list[str] | None,
    typer.Option(
        "--preprocess",
        help="Of a model that is not CouCE's: resize=256, crop=224, mean=0.5,0.5,0.5, std,"
        " channels=BGR, scale=255, aspect=keep. Repeatable.",
    ),
]


def prepared(preparation: list[str] | None) -> "Preprocess | None":
    from couce.preprocess import Preprocess

    return Preprocess.parse(preparation) if preparation else None


def embed(
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path(
        "vectors.npz"
    ),
    model: Annotated[Path, typer.Option(help="The ONNX model.")] = Path("model.onnx"),
    provider: Annotated[str, typer.Option(help="auto, cuda, tensorrt or cpu.")] = "auto",
    batch: Annotated[int, typer.Option(min=1, help="Images that the model sees at once.")] = 32,
    preparation: Preparation = None,
) -> None:
    """Embed pictures into a file of vectors; class folders become labels."""
    import numpy as np
    from rich.progress import track

    from couce.durable import replace_file
    from couce.embedder import Embedder
    from couce.errors import CouceError
    from couce.files import labelled_files
    from couce.preprocess import ImageError

    if out.suffix != ".npz" or not out.parent.is_dir():
        raise CouceError(f"embeddings go to something.npz in a folder that is there, not {out}")
    embedder = Embedder(model, provider=provider, batch=batch, preprocess=prepared(preparation))
    files = labelled_files(images)
    typer.echo(f"{len(files)} images, {embedder.dim} dimensions, on {embedder.provider}")
    found = []
    rows = embedder.stream(path for path, _ in files)
    pairs = zip(files, rows, strict=True)
    for (path, label), row in track(pairs, "embedding", len(files), transient=True):
        if isinstance(row, ImageError):
            typer.echo(f"left out: {row}", err=True)
        else:
            found.append((path, label, row))
    if not found:
        raise CouceError(f"none of the {len(files)} images could be read; nothing was written")
    paths, labels, vectors = zip(*found, strict=True)
    arrays: dict[str, Any] = {
        "embeddings": np.stack(vectors),
        "paths": np.array([str(path) for path in paths]),
    }
    if None not in labels:
        arrays["labels"] = np.array(labels)
    arrays["model"] = np.array(embedder.hash)

    def write(part: Path) -> None:
        with part.open("wb") as file:  # savez would add a suffix to a name
            np.savez(file, **arrays)

    replace_file(out, write)
    then = f"couce evaluate {out}" if "labels" in arrays else "couce index build gallery/"
    typer.echo(f"{len(found)} embeddings written to {out}. Next: {then}")
