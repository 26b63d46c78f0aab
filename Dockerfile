# Three images: serve-cpu (the last, so the one that is built unless another is named), serve-gpu, train-gpu.
#
#     docker build -t couce .
#     docker run --rm -v couce:/data couce key new me --role admin    # the first key; shown once
#     docker run --init -p 8000:8000 -v couce:/data couce
#
# /data holds model.onnx and index/. The server wants a key before it starts, because others can reach it.
# docs/operating.md says more; scripts/try-container tries these lines where no container engine runs.

# Python 3.12 everywhere, because Ubuntu has it below the CUDA image, and Debian 12, whose glibc is older
# than that Ubuntu's: what is fetched here runs there.
FROM python:3.12-slim-bookworm AS source
# The same source gives the same wheel, byte for byte: its files are dated 1980.
ENV SOURCE_DATE_EPOCH=315532800 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY . .

FROM source AS wheels-cpu
RUN --mount=type=cache,target=/root/.cache/pip pip wheel --wheel-dir /wheels ".[cpu,milvus]"

FROM source AS wheels-gpu
RUN --mount=type=cache,target=/root/.cache/pip pip wheel --wheel-dir /wheels ".[gpu,milvus]"

# PyPI's torch is built for CUDA 13, and one process holds one cuDNN: onnxruntime and faiss for CUDA 13 too.
FROM source AS wheels-train
RUN --mount=type=cache,target=/root/.cache/pip pip wheel --wheel-dir /wheels ".[gpu-cu13,train,milvus]"


# Training and export: docker build --target train-gpu -t couce-train .
FROM python:3.12-slim-bookworm AS train-gpu
# CUDA comes with torch's packages; the path lets onnxruntime find it there. Fetched weights stay in /data.
ENV PATH=/opt/couce/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 ORT_DISABLE_TELEMETRY=1 \
    TORCH_HOME=/data/.torch \
    LD_LIBRARY_PATH=/opt/couce/lib/python3.12/site-packages/nvidia/cu13/lib:/opt/couce/lib/python3.12/site-packages/nvidia/cudnn/lib
# A compiler, which torch.compile (--set compile=true) calls.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN --mount=type=bind,from=wheels-train,source=/wheels,target=/wheels \
    python3 -m venv /opt/couce && \
    /opt/couce/bin/pip install --no-cache-dir --no-index --find-links=/wheels "couce[gpu-cu13,train,milvus]"
RUN useradd --uid 10001 --create-home couce && install --directory --owner=couce --group=couce /data
USER 10001
WORKDIR /data
VOLUME /data
ENTRYPOINT ["couce"]
CMD ["--help"]


# Serving on a GPU: docker build --target serve-gpu -t couce-gpu .
FROM nvidia/cuda:12.9.1-cudnn-runtime-ubuntu24.04 AS serve-gpu
ENV PATH=/opt/couce/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 ORT_DISABLE_TELEMETRY=1
RUN apt-get update && apt-get install --yes --no-install-recommends python3 python3-venv && rm -rf /var/lib/apt/lists/*
RUN --mount=type=bind,from=wheels-gpu,source=/wheels,target=/wheels \
    python3 -m venv /opt/couce && \
    /opt/couce/bin/pip install --no-cache-dir --no-index --find-links=/wheels "couce[gpu,milvus]"
RUN useradd --uid 10001 --create-home couce && install --directory --owner=couce --group=couce /data
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=2m --retries=3 CMD ["python", "-c", \
    "from urllib.request import *; build_opener(ProxyHandler({})).open('http://127.0.0.1:8000/readyz', timeout=4)"]
ENTRYPOINT ["couce"]
CMD ["serve", "--host", "0.0.0.0"]


# Serving on the CPU.
FROM python:3.12-slim-bookworm AS serve-cpu
# onnxruntime (from 1.29) would report models and their use to its makers.
ENV PATH=/opt/couce/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 ORT_DISABLE_TELEMETRY=1
# The wheels are only looked at, so that they make no layer of the image.
RUN --mount=type=bind,from=wheels-cpu,source=/wheels,target=/wheels \
    python3 -m venv /opt/couce && \
    /opt/couce/bin/pip install --no-cache-dir --no-index --find-links=/wheels "couce[cpu,milvus]"
# A number that is the same everywhere, for the owner of what is mounted at /data.
RUN useradd --uid 10001 --create-home couce && install --directory --owner=couce --group=couce /data
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
STOPSIGNAL SIGTERM
# There is no curl in here. Never by way of a proxy, which the environment may name; with another --port
# the check must be given anew (docker run --health-cmd).
HEALTHCHECK --interval=10s --timeout=5s --start-period=2m --retries=3 CMD ["python", "-c", \
    "from urllib.request import *; build_opener(ProxyHandler({})).open('http://127.0.0.1:8000/readyz', timeout=4)"]
ENTRYPOINT ["couce"]
CMD ["serve", "--host", "0.0.0.0"]
