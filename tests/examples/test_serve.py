"""The server of examples/serve: answers as the model does, shares calls, counts, and imports no torch."""

import json
import os
import subprocess
import sys

import pytest

from tests.repository.sources import ROOT

FOLDER = ROOT / "examples" / "serve"
pytestmark = pytest.mark.slow

# In a process of its own: it must do without torch.
CLIENT = """
import asyncio, io, json, struct, sys, zlib
sys.modules["torch"] = None
import numpy as np
from PIL import Image
import httpx
from app import app, as_input

def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

# A few bytes that stand for 3.6 billion pixels.
HEADER = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
BOMB = b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", HEADER) + chunk(b"IEND", b"")

async def main():
    pictures = []
    for number in range(8):
        content = io.BytesIO()
        pixels = np.random.default_rng(number).integers(0, 256, (40, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(content, "png")
        pictures.append(content.getvalue())
    async with app.router.lifespan_context(app):
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")
        answers = await asyncio.gather(*[client.post("/classify", content=each) for each in pictures])
        direct = app.state.batcher.model(np.stack([as_input(each) for each in pictures]))
        print(json.dumps({
            "answers": [list(each.json()["probabilities"].values()) for each in answers],
            "direct": direct.tolist(),
            "health": (await client.get("/health")).json(),
            "refused": [(await client.post("/classify", content=each)).status_code for each in (b"no image", BOMB)],
            "metrics": (await client.get("/metrics")).text,
        }))

asyncio.run(main())
"""


def test_images_are_classified_in_shared_calls_without_torch(tmp_path):
    for package in ("fastapi", "httpx", "PIL"):
        pytest.importorskip(package, reason="pip install '.[examples]'")
    path = tmp_path / "classifier.precast"
    subprocess.run([sys.executable, FOLDER / "make_model.py", path], check=True)
    environment = {**os.environ, "MODEL": str(path), "PYTHONPATH": f"{ROOT / 'src'}:{FOLDER}"}
    done = subprocess.run([sys.executable, "-c", CLIENT], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    for answer, direct in zip(told["answers"], told["direct"], strict=True):
        assert answer == pytest.approx(direct, abs=1e-5)
    assert told["health"]["status"] == "ok"
    assert told["refused"] == [422, 422]
    counts = dict(line.split() for line in told["metrics"].splitlines() if not line.startswith("#"))
    assert (counts["classify_requests_total"], counts["classify_failures_total"]) == ("10", "2")
    assert counts["model_images_total"] == "8"
    assert int(counts["model_calls_total"]) < 8


def test_the_image_holds_no_torch():
    text = (FOLDER / "Dockerfile").read_text()
    assert "torch" not in text.partition("FROM")[2]
    copied = [name for line in text.splitlines() if line.startswith("COPY") for name in line.split()[1:-1]]
    assert set(copied) == {"precast-*.whl", "app.py", "classifier.precast"}
