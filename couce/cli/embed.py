from pathlib import Path
from typing import Annotated, Any

import typer

from couce.cli.shared.options import Model, PreprocessOption, Provider, parse_preprocess


def embed(
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders with images.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The .npz file to write.")] = Path(
        "vectors.npz"
    ),
    model: Model = Path("model.onnx"),
    provider: Provider = "auto",
    batch: Annotated[
        int, typer.Option(min=1, help="How many images the model embeds at once.")
    ] = 32,
    preprocess: PreprocessOption = None,
) -> None:
    """Embed images and write the embeddings to a file. Class folders become labels."""
    import numpy as np
    from rich.progress import track

    from couce.data.folders import labelled_files
    from couce.embedder import Embedder
    from couce.errors import CouceError
    from couce.files import replace_file
    from couce.preprocess import ImageError

    if out.suffix != ".npz" or not out.parent.is_dir():
        raise CouceError(f"--out must be an .npz file in an existing folder, not {out}")
    embedder = Embedder(
        model, provider=provider, batch=batch, preprocess=parse_preprocess(preprocess)
    )
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
        # An open file, because savez would add .npz to the name.
        with part.open("wb") as file:
            np.savez(file, **arrays)

    replace_file(out, write)
    then = f"couce evaluate {out}" if "labels" in arrays else "couce index build gallery/"
    typer.echo(f"{len(found)} embeddings written to {out}. Next: {then}")
