"""A server with LitServe and its batching."""

import sys
from typing import Any

import litserve as ls
import numpy as np
from common import BATCH, WAIT, K, answer, opened
from fastapi import Request

from couce.index import Hit


class Search(ls.LitAPI):  # type: ignore[misc]
    def setup(self, _device: str) -> None:
        self.embedder, self.gallery = opened()

    def decode_request(self, request: Request) -> Any:
        form: Any = request  # LitServe has parsed the form already
        return self.embedder.decode(form["image"].file.read())

    def batch(self, inputs: list[Any]) -> Any:
        return np.stack(inputs)

    def predict(self, pixels: Any) -> list[list[Hit]]:
        return self.gallery.search(self.embedder.run(pixels), K)

    def unbatch(self, output: list[list[Hit]]) -> list[list[Hit]]:
        return output

    def encode_response(self, output: list[Hit]) -> dict[str, Any]:
        return answer(output)


if __name__ == "__main__":
    api = Search(max_batch_size=BATCH, batch_timeout=WAIT, api_path="/search")
    ls.LitServer(api, accelerator="cpu", timeout=60).run(
        host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="critical"
    )
