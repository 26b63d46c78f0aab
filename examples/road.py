"""All steps in Python: train, evaluate, export, index, search, audit, serve.

Run it as a script, or cell by cell in an editor that knows ``# %%``. It uses the drawn demo set
and trains for one epoch, so it takes about a minute and its model is poor.
"""

# %% Train. The run's folder is runs/demo-1, or the next free number.
import logging

from couce.train import train

logging.basicConfig(format="%(message)s")
logging.getLogger("couce").setLevel(logging.INFO)  # what a command would print
run = train("demo", epochs=1, settings={"odba.capacity": 512})
print("best epoch, R@1:", round(run.metrics["best"]["R@1"], 3))

# %% Export its best checkpoint to a plain ONNX model. A run stands for its best checkpoint.
from couce.export import export

exported = export(run, "model.onnx")
print("cosine between torch and ONNX, at least:", round(exported.parity.cosine, 6))

# %% Evaluate the model on the test half, without torch.
import couce

metrics = couce.evaluate("model.onnx", "demo")
print({name: round(value, 3) for name, value in metrics.items()})

# %% Embed images.
from pathlib import Path

from couce.data.folders import image_files
from couce.embedder import Embedder

images = image_files(Path("data/demo-0.9/test"))
embedder = Embedder("model.onnx")
rows = embedder.embed(images[:3])
print("embeddings:", rows.shape)

# %% Index the test images and search with one of them.
from couce.index import open_index
from couce.index.commands import build_index

build_index("data/demo-0.9/test", "model.onnx", "index")
with open_index("index") as index:
    for hit in index.search(rows[:1], k=3)[0]:
        print(f"{hit.score:.3f}  {hit.item.label}")

# %% Audit the model: change the pictures one way at a time and search again.
report = couce.audit(["model.onnx"], "demo", limit=20, gallery=200)
print("written:", report.write(Path("analysis"))[-1])

# %% Serve the model and the index. A real server would run until it is stopped:
# uvicorn.run(create_app(ServerSettings(model="model.onnx", index="index")))
from fastapi.testclient import TestClient

from couce.server import ServerSettings, create_app

app = create_app(ServerSettings(model=Path("model.onnx"), index="index"))
with TestClient(app, base_url="http://localhost") as client:
    answer = client.post("/search", files={"image": images[0].read_bytes()}, params={"k": 3})
    print("labels found:", [hit["label"] for hit in answer.json()["hits"]])
