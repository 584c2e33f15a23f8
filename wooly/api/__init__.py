"""A typed client of the REST API: what ``/schema/swagger`` of the controller describes, billing included.

    from wooly.api import Client

    client = Client("https://controller:8080", api_key="wk_...", ca="ca.pem")      # or Client.configured()
    task = client.submit(required_vram_mb=4096, title="nightly evaluation", queue=True)
    print(client.waiting(task.id).sentence if task.node is None else task.node_name)

Answers are the frozen structs of ``wooly.api.answers``. Errors are those of ``wooly.errors``: ``NoServerError`` when nothing answers,
``ApiError`` (with ``status`` and ``fields``) when the request is refused.
"""

from __future__ import annotations

from wooly.api.client import Client

__all__ = ["Client"]
