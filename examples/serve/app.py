"""Image classification over HTTP, without torch: FastAPI around ``precast.runtime``.

    python make_model.py classifier.precast
    pip install fastapi uvicorn pillow
    MODEL=classifier.precast uvicorn app:app

    curl --data-binary @photo.png localhost:8000/classify
    curl localhost:8000/health
    curl localhost:8000/metrics

Requests that arrive within a few milliseconds share one call of the model.
"""

import asyncio
import io
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import PlainTextResponse
from PIL import Image, UnidentifiedImageError

import precast.runtime

LABELS = ("cat", "dog", "ship", "tree")
SIDE = 32
LARGEST_BATCH = 32
PATIENCE = 0.002
"""Seconds that a request waits for others to share a call with."""


@dataclass
class Metrics:
    """Counts in the text format of Prometheus."""

    requests: int = 0
    failures: int = 0
    calls: int = 0
    images: int = 0
    seconds: float = 0.0

    def text(self) -> str:
        values = {
            "classify_requests_total": self.requests,
            "classify_failures_total": self.failures,
            "model_calls_total": self.calls,
            "model_images_total": self.images,
            "model_seconds_total": round(self.seconds, 6),
        }
        return "".join(f"# TYPE {name} counter\n{name} {value}\n" for name, value in values.items())


@dataclass
class Batcher:
    """Collects images for a moment, calls the model once for all of them, and hands each request its row."""

    model: precast.runtime.Model
    metrics: Metrics
    waiting: asyncio.Queue = field(default_factory=asyncio.Queue)

    async def classify(self, image: np.ndarray) -> np.ndarray:
        result = asyncio.get_running_loop().create_future()
        await self.waiting.put((image, result))
        return await result

    async def run(self) -> None:
        while True:
            batch = [await self.waiting.get()]
            deadline = time.monotonic() + PATIENCE
            while len(batch) < LARGEST_BATCH and (left := deadline - time.monotonic()) > 0:
                try:
                    batch.append(await asyncio.wait_for(self.waiting.get(), left))
                except TimeoutError:
                    break
            await self._answer(batch)

    async def _answer(self, batch: list) -> None:
        images = np.stack([image for image, _ in batch])
        started = time.perf_counter()
        try:
            # Native code releases Python's lock: the event loop goes on while the model runs in a thread.
            rows = await asyncio.to_thread(self.model, images)
        except Exception as error:  # noqa: BLE001 - one request's failure must not end the loop for all
            for _, result in batch:
                if not result.cancelled():
                    result.set_exception(error)
            return
        self.metrics.calls += 1
        self.metrics.images += len(batch)
        self.metrics.seconds += time.perf_counter() - started
        for (_, result), row in zip(batch, rows, strict=True):
            if not result.cancelled():
                result.set_result(row)


def as_input(content: bytes) -> np.ndarray:
    """An image of any format and size as the model takes it."""
    with Image.open(io.BytesIO(content)) as image:
        pixels = np.asarray(image.convert("RGB").resize((SIDE, SIDE)), np.float32)
    return np.ascontiguousarray((pixels / 127.5 - 1).transpose(2, 0, 1))


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[None]:
    model = precast.runtime.load(os.environ.get("MODEL", "classifier.precast"), threads=1)
    model.verify()  # the same numbers here as where it was made, or no start
    app.state.metrics = Metrics()
    app.state.batcher = Batcher(model, app.state.metrics)
    worker = asyncio.create_task(app.state.batcher.run())
    yield
    worker.cancel()


app = FastAPI(title="Image classification with Precast", lifespan=serving)


@app.post("/classify")
async def classify(request: Request) -> dict:
    metrics: Metrics = request.app.state.metrics
    metrics.requests += 1
    try:
        image = as_input(await request.body())
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError):
        metrics.failures += 1
        raise HTTPException(422, "send an image as the body of the request") from None
    probabilities = await request.app.state.batcher.classify(image)
    scores = {label: round(float(p), 6) for label, p in zip(LABELS, probabilities, strict=True)}
    return {"label": max(scores, key=scores.get), "probabilities": scores}


@app.get("/health")
async def health(request: Request) -> dict:
    return {"status": "ok", "target": request.app.state.batcher.model.target}


@app.get("/metrics")
async def show_metrics(request: Request) -> PlainTextResponse:
    return PlainTextResponse(request.app.state.metrics.text())
