"""Client of a node's model cache: finds the node and its data port, and registers models."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import msgspec
from blake3 import blake3

from bus_schemas import subjects
from bus_schemas.batch import LIMITS
from bus_schemas.dataport import Forget, Forgotten, Keep, Kept, Listed, Models
from bus_schemas.model_cache import MODELS_VERB, ModelCacheOpened, ModelManifest, ModelTensor, OpenModelCache, encode_manifest
from bus_schemas.session import NodeInfo
from wooly import config as configuration
from wooly.cli.bus import connect, discover, principal_of
from wooly.cli.errors import CommandError
from wooly.cli.model_files import Tensor
from wooly.errors import NoServerError, ProtocolError
from wooly.transport.credentials import bus_credentials
from wooly.transport.data_port import DataPort

__all__ = ["ModelNode", "find_node"]

T = TypeVar("T")

_REQUEST_S: Final = 5.0
_CHUNKS_A_ROUND: Final = 8
_opened: Final = msgspec.msgpack.Decoder(ModelCacheOpened)


def find_node(urls: Sequence[str], name: str | None, wait_s: float = 1.0) -> NodeInfo:
    """The node called ``name`` (or with this id), or the only one. Raises CommandError, NoServerError."""
    found = [node for node, _ in discover(urls, wait_s)]
    if name is not None:
        found = [node for node in found if name in (node.name, node.node)]
    if not found:
        raise CommandError(f"no node {name} answers; see: wooly ping" if name else "the bus answers, but no node is on it")
    if len(found) > 1:
        raise CommandError(f"say which node: --node {' or --node '.join(node.name for node in found)}")
    return found[0]


class ModelNode:
    """One device of a node, for one tenant. Close it after use."""

    def __init__(self, urls: Sequence[str], node: NodeInfo, tenant: str, gpu: int = 0) -> None:
        opened = asyncio.run(_open(urls, node, OpenModelCache(tenant, gpu)))
        if opened.fault is not None:
            raise CommandError(f"node {node.name}: {opened.fault.message}")
        self._port = DataPort(opened.data_port, opened.name, opened.token, bus_credentials(configuration.load(task=False), urls).tls)

    @property
    def sent_bytes(self) -> int:
        return self._port.sent_bytes

    def close(self) -> None:
        self._port.close()

    def add(self, name: str, dtype: str, tensors: Iterable[Tensor]) -> ModelManifest:
        """Keep a model; only chunks that the node lacks are sent. Raises RefusedError with the node's reason, NodeLostError."""
        sent: list[ModelTensor] = []
        waiting: list[tuple[Tensor, list[memoryview]]] = []
        for tensor in tensors:
            step = LIMITS.chunk_bytes
            waiting.append((tensor, [tensor.data[at : at + step] for at in range(0, tensor.data.nbytes, step)]))
            if sum(len(chunks) for _, chunks in waiting) >= _CHUNKS_A_ROUND:
                sent += self._send(waiting)
                waiting = []
        sent += self._send(waiting)
        manifest = ModelManifest(name, dtype, tuple(sent))
        data = encode_manifest(manifest)
        if len(data) > LIMITS.chunk_bytes:
            raise CommandError(f"a list of {len(sent)} tensors is too long to be kept; split the model")
        self._port.put([memoryview(data)])
        _expect(self._port.ask(Keep(blake3(data).digest())), Kept)
        return manifest

    def models(self) -> Listed:
        return _expect(self._port.ask(Models()), Listed)

    def delete(self, name: str) -> int:
        """Bytes that came free. Raises RefusedError when there is no such model."""
        return _expect(self._port.ask(Forget(name)), Forgotten).freed_bytes

    def _send(self, tensors: Sequence[tuple[Tensor, Sequence[memoryview]]]) -> list[ModelTensor]:
        names = iter(self._port.put([chunk for _, chunks in tensors for chunk in chunks]))
        return [
            ModelTensor(tensor.name, tensor.dtype, tensor.shape, tensor.data.nbytes, tuple(next(names) for _ in chunks))
            for tensor, chunks in tensors
        ]


def _expect(answer: object, kind: type[T]) -> T:
    if not isinstance(answer, kind):
        raise ProtocolError(f"the node answered {type(answer).__name__}: client and node are of different versions")
    return answer


async def _open(urls: Sequence[str], node: NodeInfo, request: OpenModelCache) -> ModelCacheOpened:
    import nats

    async with connect(urls) as client:
        try:
            subject = subjects.node_request(node.node, MODELS_VERB, principal_of(urls))
            answer = await client.request(subject, msgspec.msgpack.encode(request), timeout=_REQUEST_S)
            return _opened.decode(answer.data)
        except (nats.errors.Error, TimeoutError):
            raise NoServerError(f"node {node.name} does not answer; is it running, and of this version?") from None
        except msgspec.DecodeError as error:
            raise ProtocolError(f"the node's answer is unreadable ({error}); client and node are of different versions") from error
