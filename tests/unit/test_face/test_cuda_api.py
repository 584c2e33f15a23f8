"""torch.cuda and torch.accelerator answer as on a machine with one GPU."""

from __future__ import annotations

import gc
import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.device import same
from wooly.device.face.devices import chosen, set_count


def test_availability() -> None:
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
    assert torch.cuda.is_initialized() and torch.backends.cuda.is_built()
    assert torch.version.cuda is not None and torch.cuda.get_arch_list() == ["sm_80"]
    assert torch.cuda.is_bf16_supported() and torch.cuda.is_tf32_supported()
    assert not torch.backends.cudnn.is_available() and torch.distributed.is_nccl_available()
    assert torch.get_device_module("cuda") is torch.cuda and torch.get_device_module() is torch.cuda


def test_properties() -> None:
    found = torch.cuda.get_device_properties("cuda:0")
    assert torch.cuda.get_device_name() == found.name == "Loopback (WOOLY)"
    assert torch.cuda.get_device_capability() == (found.major, found.minor) == (8, 0)
    assert found.total_memory == 16 << 30 and found.multi_processor_count == 1
    assert torch.cuda.get_device_properties().uuid == found.uuid
    assert repr(found).startswith("_CudaDeviceProperties(name='Loopback (WOOLY)', major=8")


def test_device_contexts() -> None:
    with torch.cuda.device(0), torch.cuda.device("cuda"), torch.cuda.device_of(torch.zeros(1)):
        assert torch.cuda.current_device() == 0
    torch.cuda.set_device("cuda:0")
    assert torch.cuda.can_device_access_peer(0, 0) is False


def test_memory_counts_live_tensors() -> None:
    torch.cuda.synchronize()  # what tests before this one left under way still holds its tensors
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    free, total = torch.cuda.mem_get_info()
    left = total - free - before  # by programs of earlier tests that trapped: the link goes on after that, a node would not
    x = torch.zeros(1 << 18, device="cuda")
    y = torch.ones(1 << 18, device="cuda")
    assert torch.cuda.memory_allocated() - before == 2 << 20
    del y
    assert torch.cuda.memory_allocated() - before == 1 << 20
    assert torch.cuda.max_memory_allocated() - before == 2 << 20
    assert torch.cuda.memory_reserved() == torch.cuda.memory_allocated() == torch.cuda.memory_stats()["allocated_bytes.all.current"]
    free, total = torch.cuda.mem_get_info()
    assert total == 16 << 30 and free == total - torch.cuda.memory_allocated() - left
    del x
    assert torch.cuda.mem_get_info()[0] >= free + (1 << 20), "asking waits for what was recorded, frees too"
    x = torch.zeros(1 << 18, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()
    assert "CUDA memory summary" in torch.cuda.memory_summary() and "Allocated memory" in torch.cuda.memory_summary(abbreviated=True)
    torch.cuda.empty_cache()
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_snapshot() == [] and x.sum().item() == 0


def test_memory_fraction_is_a_limit() -> None:
    refused = torch.cuda.memory_stats()["num_ooms"]
    try:
        torch.cuda.set_per_process_memory_fraction(1e-6)
        assert torch.cuda.get_per_process_memory_fraction() == 1e-6
        with pytest.raises(torch.cuda.OutOfMemoryError, match="CUDA out of memory"):
            torch.empty(1 << 20, device="cuda")
        assert torch.cuda.memory_stats()["num_ooms"] == refused + 1
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.empty(1 << 20, device="cuda").numel() == 1 << 20


def test_accelerator_is_cuda() -> None:
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == 1
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.accelerator.current_device_index() == 0
    assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated()
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    torch.accelerator.set_device_index(0)
    with torch.accelerator.device_index(0):
        assert torch.accelerator.current_stream() == torch.cuda.current_stream()


# --- streams and events


def test_streams() -> None:
    stream = torch.cuda.Stream()
    assert torch.cuda.current_stream() == torch.cuda.default_stream() != stream
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == stream
        x = torch.ones(2, device="cuda") * 3
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.cuda.current_stream().wait_stream(stream)
    x.record_stream(stream)
    event = stream.record_event()
    stream.wait_event(event)
    event.synchronize()
    assert event.query() and stream.query() and isinstance(stream, torch.Stream)
    assert x.tolist() == [3, 3] and stream.device == torch.device("cuda", 0)
    with stream:
        assert torch.cuda.current_stream() == stream
    assert len({stream, torch.cuda.Stream(), torch.cuda.Stream()}) == 3


def test_event_times() -> None:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with pytest.raises(ValueError, match="recorded before"):
        start.elapsed_time(end)
    start.record()
    torch.randn(200, 200, device="cuda").square().sum()
    end.record()
    torch.cuda.synchronize()
    assert 0 < start.elapsed_time(end) < 60_000
    with pytest.raises(ValueError, match="enable_timing=True"):
        torch.cuda.Event().elapsed_time(end)


def test_a_stream_is_found_by_the_number_that_was_handed_on() -> None:
    made = torch.cuda.Stream()
    again = torch.cuda.ExternalStream(made.cuda_stream)
    assert again == made and again.device == made.device
    with torch.cuda.stream(again):
        assert torch.cuda.current_stream() == made
    assert torch.cuda.ExternalStream(torch.cuda.default_stream().cuda_stream) == torch.cuda.default_stream()


def test_generic_streams_and_events() -> None:
    event = torch.Event(device="cuda", enable_timing=True)
    event.record()
    event.synchronize()
    assert event.query() and isinstance(event, torch.Event) and isinstance(event, torch.cuda.Event)
    with torch.Stream(device="cuda") as stream:
        assert torch.accelerator.current_stream() == stream and isinstance(stream, torch.cuda.Stream)
    assert isinstance(torch.cuda.Stream(), torch.Stream) and issubclass(torch.cuda.Stream, torch.Stream)
    assert not torch.cuda.is_current_stream_capturing()


def test_the_profiler_takes_cuda_and_stays_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        (torch.ones(4, device="cuda") * 2).sum().item()
    assert any("aten::mul" in event.key for event in found.key_averages())
    assert "Failed to record CUDA event" not in capfd.readouterr().err


def test_the_plan_cache_is_the_nodes() -> None:
    cache = torch.backends.cuda.cufft_plan_cache
    cache.max_size = 16
    cache.clear()
    assert cache.size == 0 and cache[0].max_size == 16


@pytest.mark.parametrize("which", ["linalg", "blas"])
def test_a_preferred_library_is_kept_and_changes_nothing(which: str) -> None:
    """Scripts choose MAGMA, cuSOLVER or cuBLASLt by these; a CPU build of torch refuses them."""
    prefer = getattr(torch.backends.cuda, f"preferred_{which}_library")
    before = prefer()
    wanted = {"linalg": "magma", "blas": "cublaslt"}[which]
    try:
        assert prefer(wanted) == prefer() != before
    finally:
        prefer(before)
    assert prefer() == before


def test_memory_pools_and_waiting_are_harmless() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.ones(3, device="cuda")
    torch.cuda._sleep(1_000_000)
    assert x.tolist() == [1, 1, 1] and pool.allocator is None and pool.id != torch.cuda.MemPool().id and pool.snapshot() == []
    assert torch.cuda.tunable.get_max_tuning_iterations() == 100
    assert torch.cuda.get_device_properties(0).clock_rate > 0


# --- what does not exist says so


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: torch.cuda.MemPool(object()), NotImplementedError),
        (lambda: torch.cuda.CUDAGraph().debug_dump("graph.dot"), NotImplementedError),
        (lambda: torch.cuda.ExternalStream(0x7F0000000000), NotImplementedError),
        (lambda: torch.cuda.Event(interprocess=True), NotImplementedError),
        (lambda: torch.cuda.utilization(), NotImplementedError),
        (lambda: torch.cuda.current_blas_handle(), NotImplementedError),
        (lambda: torch.cuda.caching_allocator_alloc(16), NotImplementedError),
        (lambda: torch.zeros(1, device="cuda").untyped_storage()._share_cuda_(), NotImplementedError),
    ],
)
def test_refusals(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"remote|session"):
        call()


def test_tuning_calls_of_libraries_do_nothing_and_their_switches_are_off() -> None:
    """Lightning clears cuBLAS workspaces around every fit where the name exists; torch.cuda.tunable asks before it acts."""
    c: Any = torch._C
    assert c._cuda_clearCublasWorkspaces() is None
    assert c._cuda_getCublasWorkspaceSize() == 0
    assert torch.cuda.tunable.is_enabled() is False
    assert torch.cuda.tunable.tuning_is_enabled() is False
    assert c._cuda_cudaCachingAllocator_is_enabled() is True


def test_profiler_ranges_and_runtime() -> None:
    assert torch.cuda.nvtx.range_push("a") == 0 and torch.cuda.nvtx.range_pop() == 0
    with torch.cuda.nvtx.range("b"):
        torch.cuda.nvtx.mark("c")
    with torch.autograd.profiler.emit_nvtx(record_shapes=True):
        assert torch.ones(2, device="cuda").sum().item() == 2
    runtime = torch.cuda.cudart()
    assert runtime.cudaProfilerStart() == runtime.cudaError.success == runtime.cudaProfilerStop()
    torch.cuda.check_error(0)


def test_a_compiler_of_the_scripts_own_is_called() -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    x = torch.arange(4.0, device="cuda", requires_grad=True)
    same(torch.compile(lambda t: t * 2 + 1, backend=backend)(x).detach(), torch.arange(4.0) * 2 + 1)
    assert len(graphs) == 1
    torch.compile(lambda t: (t * t).sum(), backend="aot_eager")(x).backward()
    assert x.grad is not None
    same(x.grad, torch.arange(4.0) * 2)


def test_fake_tensors_and_traces_are_on_the_device() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    with FakeTensorMode():
        x = torch.randn(3, 4, device="cuda", requires_grad=True)
        (x @ torch.randn(4, 5, device="cuda")).relu().sum().backward()
        assert x.is_cuda and str(x.device) == "cuda:0" and x.grad is not None and x.grad.shape == (3, 4)

    def gradients(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad((x @ w).relu().sum(), [x, w])

    given = [torch.ones(3, 4, device="cuda", requires_grad=True), torch.ones(4, 5, device="cuda", requires_grad=True)]
    traced = make_fx(gradients, tracing_mode="fake")(*given)
    for found, want in zip(traced(*given), gradients(*given), strict=True):
        assert torch.equal(found, want)


def test_data_parallel_on_one_device() -> None:
    model = nn.Linear(3, 2)
    x = torch.linspace(0, 1, 6).reshape(2, 3)
    expected = model(x)
    same(nn.DataParallel(model.cuda())(x.cuda()).detach(), expected.detach())


def test_grad_scaler() -> None:
    model = nn.Linear(2, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
    before = model.weight.detach().cpu().clone()
    scaler.scale(model(torch.ones(1, 2, device="cuda")).sum()).backward()
    assert model.weight.grad is not None and model.weight.grad.tolist() == [[4, 4]]
    scaler.step(optimizer)
    scaler.update()
    same(model.weight.detach(), before - 0.1)
    scaler.scale(model(torch.tensor([[float("inf"), 1.0]], device="cuda")).sum()).backward()
    kept = model.weight.detach().cpu().clone()
    scaler.step(optimizer)
    scaler.update()
    same(model.weight.detach(), kept)
    assert scaler.get_scale() == 2.0
    assert torch.cuda.amp.GradScaler().is_enabled()


def test_jit_knows_the_wrapped_functions() -> None:
    @torch.jit.script
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros([2], device=x.device) + torch.ones_like(x) + torch.rand([2], device=x.device) * 0

    same(f(torch.ones(2, device="cuda")), torch.ones(2))
    traced = torch.jit.trace(nn.Linear(2, 2).cuda(), torch.ones(1, 2, device="cuda"))
    assert traced(torch.ones(3, 2, device="cuda")).shape == (3, 2)


def test_an_exported_program_checks_its_tensors_by_the_device_that_the_script_sees() -> None:
    """torch.export writes a check of type, device and layout before each conversion."""

    class Half(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.half().float().to("cuda") + 1

    x = torch.tensor([1.0, 1 / 3])
    program = torch.export.export(Half(), (x.cuda(),))
    for exported in (program, program.run_decompositions()):
        same(exported.module()(x.cuda()), x.half().float() + 1)
    check = torch.ops.aten._assert_tensor_metadata
    check(x.cuda(), device=torch.device("cuda:0"), dtype=torch.float32)
    for wrong in ({"device": torch.device("cpu")}, {"dtype": torch.float16}, {"size": [3]}):
        with pytest.raises(RuntimeError, match="mismatch"):
            check(x.cuda(), **wrong)


def test_each_thread_has_a_current_device() -> None:
    set_count(3)
    try:
        assert torch.cuda.device_count() == 3 and torch.cuda.current_device() == 0
        torch.cuda.set_device(2)
        with torch.cuda.device(1), ThreadPoolExecutor(1) as other:
            assert torch.cuda.current_device() == 1 and torch.cuda.current_stream().device == torch.device("cuda:1")
            assert other.submit(torch.cuda.current_device).result() == 0
        assert torch.cuda.current_device() == 2 and chosen(2) == 2
        with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
            torch.cuda.set_device(3)
    finally:
        set_count(1)


def test_a_local_rank_means_its_one_device_by_every_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    set_count(1)
    try:
        assert torch.cuda.device_count() == 3 and torch.cuda.current_device() == 2 and chosen() == 0
        assert {str(torch.zeros(1, device=name).device) for name in ("cuda", "cuda:0", "cuda:2")} == {"cuda:2"}
        with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
            torch.zeros(1, device="cuda:3")
    finally:
        monkeypatch.undo()
        set_count(1)


def test_checkpoint_and_fork_rng() -> None:
    from torch.utils.checkpoint import checkpoint

    layer = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)).cuda()
    x = torch.ones(2, 4, device="cuda", requires_grad=True)
    checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert x.grad is not None
    state = torch.cuda.get_rng_state()
    with torch.random.fork_rng():
        torch.randn(3, device="cuda")
    assert torch.cuda.get_rng_state().equal(state)


def test_saving_everything_and_loading_it_elsewhere() -> None:
    model = nn.Linear(2, 2).cuda()
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "x": torch.arange(3, device="cuda")[1:]}, buffer)
    for location, device in (
        (None, "cuda"),
        ("cpu", "cpu"),
        ("cuda:0", "cuda"),
        (torch.device("cuda"), "cuda"),
        ({"cuda:0": "cpu"}, "cpu"),
    ):
        buffer.seek(0)
        loaded = torch.load(buffer, map_location=location, weights_only=True)
        assert loaded["model"]["weight"].device.type == loaded["x"].device.type == device
        assert loaded["x"].tolist() == [1, 2]
        assert loaded["model"]["weight"].cpu().equal(model.weight.detach().cpu())
