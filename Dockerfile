# The command line with what serving needs, no torch: docker build -t couce . && docker run couce doctor
FROM python:3.11-slim AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --wheel-dir /wheels ".[cpu]"

FROM python:3.11-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links=/wheels "couce[cpu]"
RUN useradd --create-home couce
USER couce
WORKDIR /home/couce
ENTRYPOINT ["couce"]
CMD ["--help"]
