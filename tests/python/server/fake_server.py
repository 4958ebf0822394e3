"""`quaver serve` in a process of its own over a scripted engine:
python fake_server.py MODEL_DIR STEP_SECONDS SHUTDOWN_TIMEOUT STALLED_CLIENT_SECONDS"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from fake_engine import FakeEngine

from quaver.server.app import create_app
from quaver.server.engines import EnginePool
from quaver.server.serve import Server, bound_socket
from quaver.server.service import Service
from quaver.tokenizer import Tokenizer

if __name__ == "__main__":
    model_dir, (step_s, shutdown_timeout_s, stalled_client_s) = Path(sys.argv[1]), map(float, sys.argv[2:])
    pool = EnginePool([FakeEngine(lambda *_: [5] * 1000, step_s=step_s, num_pages=128)])
    service = Service(
        pool=pool,
        tokenizer=Tokenizer(model_dir),
        model_dir=model_dir,
        model_names=["tiny"],
        max_model_len=256,
        max_request_tokens=256,
    )
    server = Server(service, create_app(service), shutdown_timeout_s=shutdown_timeout_s)
    asyncio.run(server.serve_until_drained(bound_socket("127.0.0.1", 0, stalled_client_s=stalled_client_s)))
    service.close()
