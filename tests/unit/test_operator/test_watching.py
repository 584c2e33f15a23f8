"""Objects that are followed while the API server answers badly."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from lightkube import AsyncClient, KubeConfig
from lightkube.config.models import Cluster, User
from lightkube.resources.core_v1 import ConfigMap

from services.operator.watching import Watched


class _Bad(BaseHTTPRequestHandler):
    """Lists one object more each time; a watch ends in the middle of a line. Every third answer is an error without a document."""

    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        body, code = b'{"type":"ADDED","object":{"metad', 200
        if "watch=" not in self.path:
            items = [{"metadata": {"name": f"m{n}", "namespace": "default", "resourceVersion": str(n)}} for n in range(1, self.asked + 1)]
            body, code = json.dumps({"metadata": {"resourceVersion": "9"}, "items": items}).encode(), 503 if self.asked % 3 == 0 else 200
        self.send_response(code)
        if code == 200:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Bad) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_bad_answers_are_survived(url: str) -> None:
    async def play() -> None:
        config = KubeConfig.from_one(cluster=Cluster(server=url), user=User(), namespace="default")
        enough = asyncio.Event()
        async with AsyncClient(config=config, trust_env=False) as client:
            watched = Watched(client, ConfigMap, lambda: enough.set() if len([*watched]) > 4 else None)
            following = asyncio.create_task(watched.follow())
            done, _ = await asyncio.wait({following, asyncio.create_task(enough.wait())}, return_when=asyncio.FIRST_COMPLETED, timeout=60)
            assert following not in done and done, "the watch continues"
            following.cancel()

    asyncio.run(play())
