"""A plain FastAPI handler, which runs in a thread pool and takes one image at a time."""

import sys
from typing import Any

import uvicorn
from common import K, answer, opened
from fastapi import FastAPI, UploadFile

app = FastAPI()
embedder, gallery = opened()


@app.post("/search")
def search(image: UploadFile) -> dict[str, Any]:
    rows = embedder.run(embedder.decode(image.file.read())[None])
    return answer(gallery.search(rows, K)[0])


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="critical")
