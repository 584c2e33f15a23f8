"""COO and compressed tensors: the same results as on the CPU, products and sums computed on the device."""

from __future__ import annotations

import contextlib
import io
import itertools
import unittest
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

from tests.support.op_db import op_db
from wooly.device.recorder import stats


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def coo(device: str, *, dense_dim: int = 0) -> torch.Tensor:
    """[3, 4] (and 2 more), with an element that occurs twice and one row without elements."""
    indices = torch.tensor([[2, 0, 2, 0], [1, 3, 1, 0]], device=device)
    values = torch.arange(1.0, 5.0, device=device)
    if dense_dim:
        values = torch.stack([values, -values], 1)
    return torch.sparse_coo_tensor(indices, values, (3, 4, 2)[: 2 + dense_dim])


def csr(device: str) -> torch.Tensor:
    starts, columns = torch.tensor([0, 2, 2, 3], device=device), torch.tensor([0, 3, 1], device=device)
    return torch.sparse_csr_tensor(starts, columns, torch.tensor([4.0, 2.0, 7.0], device=device), (3, 4))


def matrix(device: str) -> torch.Tensor:
    return torch.arange(12.0, device=device).view(3, 4) % 5


def equal(ours: Any, cpu: Any) -> None:
    if isinstance(cpu, torch.Tensor):
        assert ours.device.type == "cuda" and ours.layout == cpu.layout
        if cpu.layout is torch.sparse_coo:
            assert ours.is_coalesced() == cpu.is_coalesced() and ours._nnz() == cpu._nnz()
        torch.testing.assert_close(ours.to("cpu"), cpu, equal_nan=True)
    elif isinstance(cpu, list | tuple):
        assert len(ours) == len(cpu)
        for a, b in zip(ours, cpu, strict=True):
            equal(a, b)
    else:
        assert ours == cpu


def _added(dense: torch.Tensor, sparse: torch.Tensor, alpha: float) -> torch.Tensor:
    return dense.clone().add_(sparse, alpha=alpha)


def _in_place(x: torch.Tensor) -> list[torch.Tensor]:
    x.mul_(2)
    return [x, x.clone().add_(x).coalesce(), x.clone().zero_()]


def _sums(d: str) -> list[torch.Tensor]:
    x, none = coo(d), torch.zeros(3, 4, layout=torch.sparse_coo, device=d)
    sums = [x + x, x - x, torch.add(x.coalesce(), x, alpha=3), x + none, none - x, coo(d, dense_dim=1) + coo(d, dense_dim=1)]
    return [*sums, x.clone().add_(x), x.clone().sub_(x, alpha=2), x.clone().add_(x.coalesce()).add_(x).add_(x)]


ON_DEVICE: dict[str, Callable[[str], Any]] = {
    "to_dense": lambda d: coo(d).to_dense(),
    "to_dense with dense dimensions": lambda d: coo(d, dense_dim=1).to_dense(),
    "parts": lambda d: [coo(d)._indices(), coo(d)._values(), coo(d).sparse_dim(), coo(d).dense_dim(), coo(d)._nnz(), coo(d).is_coalesced()],
    "mm": lambda d: torch.sparse.mm(coo(d), matrix(d).t()),
    "matmul": lambda d: coo(d) @ matrix(d).t(),
    "vector": lambda d: coo(d) @ torch.arange(4.0, device=d),
    "addmm": lambda d: torch.sparse.addmm(torch.ones(3, 3, device=d), coo(d), matrix(d).t(), beta=0.5, alpha=2),
    "add": lambda d: [matrix(d) + coo(d), torch.add(matrix(d), coo(d), alpha=3)],
    "add in place": lambda d: [_added(matrix(d), coo(d), 1), _added(matrix(d), coo(d), -0.5)],
    "mask": lambda d: matrix(d).sparse_mask(coo("cpu").coalesce().to(d)),
    "mask of a sparse tensor": lambda d: [matrix(d).to_sparse().sparse_mask(coo(d)), coo(d).sparse_mask(matrix(d).to_sparse())],
    "clone": lambda d: [coo(d).clone(), csr(d).clone()],
    "transpose": lambda d: coo(d).t(),
    "half": lambda d: coo(d).half() @ matrix(d).half().t() if d == "cuda" else (coo(d) @ matrix(d).t()).half(),
    "csr bfloat16": lambda d: csr(d).bfloat16() @ matrix(d).bfloat16().t() if d == "cuda" else (csr(d) @ matrix(d).t()).bfloat16(),
    "csr parts": lambda d: [csr(d).crow_indices(), csr(d).col_indices(), csr(d).values(), csr(d)._nnz()],
    "csr mm": lambda d: csr(d) @ matrix(d).t(),
    "csr vector": lambda d: csr(d) @ torch.arange(4.0, device=d),
    "empty": lambda d: [torch.sparse_coo_tensor(size=(2, 3), device=d), torch.sparse_coo_tensor(size=(2, 3), device=d).to_dense()],
    "zeros": lambda d: [
        torch.zeros(2, 3, layout=torch.sparse_coo, device=d),
        torch.zeros(2, 3, layout=torch.sparse_csr, device=d),
        torch.zeros_like(csr(d)),
    ],
    "from lists": lambda d: [
        torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (3,), device=d),
        torch.sparse_coo_tensor([[0, 1]], torch.ones(2), device=d),
        torch.sparse_csr_tensor([0, 1, 2], [1, 0], [1.0, 2.0], device=d),
        torch.sparse_csc_tensor([0, 1, 2], [1, 0], [1.0, 2.0], (2, 2), device=d),
    ],
    "made": lambda d: [matrix(d).to_sparse(), matrix(d).to_sparse(1), matrix(d).to_sparse_csr(), matrix(d).to_sparse_csc()],
    "converted": lambda d: [csr(d).to_sparse(), csr(d).to_dense(), coo(d).to_sparse_csr(), coo(d).to_sparse_csc(), csr(d).t()],
    "scaled": lambda d: [coo(d) * 3, 3 * coo(d), coo(d) / 2, -coo(d), csr(d) * 2, -csr(d), coo(d) * torch.tensor(2.0, device=d)],
    "functions": lambda d: [coo(d).abs(), coo(d).sqrt(), torch.relu(coo(d)), coo(d) ** 2, csr(d).sin(), coo(d).isnan()],
    "sums": lambda d: [torch.sparse.sum(coo(d)), torch.sparse.sum(coo(d), 0), coo(d).sum(), coo(d).coalesce().norm()],
    "softmax": lambda d: [*(torch.sparse.softmax(coo(d), dim) for dim in (0, 1, -1)), torch.sparse.log_softmax(coo(d, dense_dim=1), 1)],
    "sparse and sparse": lambda d: [
        coo(d).coalesce() + matrix(d).to_sparse(),
        matrix(d).to_sparse() - coo(d).coalesce(),
        coo(d).coalesce() * matrix(d).to_sparse(),
        coo(d) * matrix(d),
        matrix(d) * coo(d),
        matrix(d) - coo(d),
        csr(d) + matrix(d).to_sparse_csr(),
    ],
    "products of two": lambda d: [
        torch.sparse.mm(coo(d), coo(d).t()),
        coo(d) @ matrix(d).t().to_sparse(),
        (csr(d) @ matrix(d).t().to_sparse_csr()).to_dense(),
        matrix(d).t() @ coo(d),
        matrix(d).to_sparse_csc() @ matrix(d).t(),
    ],
    "sampled": lambda d: [
        torch.sparse.sampled_addmm(csr(d), torch.ones(3, 2, device=d), matrix(d)[:2], beta=0.5, alpha=2),
        matrix(d).sparse_mask(csr(d)),
    ],
    "sums of elements that occur several times": lambda d: [x.coalesce() for x in _sums(d)],
    "changed in place": lambda d: [coo(d).mul_(2), coo(d).div_(4), coo(d).neg_(), coo(d).mul_(torch.tensor(0.5, device=d))],
    "joined": lambda d: [torch.cat([coo(d), coo(d)]), torch.cat([coo(d), coo(d)], 1), torch.stack([coo(d), coo(d)])],
    "bmm": lambda d: torch.bmm(torch.stack([coo(d), coo(d)]), torch.ones(2, 4, 2, device=d)),
    "moved": lambda d: [coo("cpu").to(d), csr("cpu").to(d), coo("cpu").coalesce().to(d)],
}
"""What needs no data on this machine, but for sizes that depend on data, and the checks that torch makes of indices."""

ANYWHERE: dict[str, Callable[[str], Any]] = {
    "coalesce": lambda d: [coo(d).coalesce(), coo(d, dense_dim=1).coalesce()],
    "sparse and sparse": lambda d: [coo(d) * coo(d), torch.sparse.mm(coo(d), coo(d).t())],
    "in place": lambda d: _in_place(coo(d)),
    "types": lambda d: [coo(d).double(), coo(d).half(), coo(d).int()],
    "selected": lambda d: [coo(d)[2], coo(d).index_select(0, torch.tensor([2, 0], device=d)), coo(d).narrow_copy(1, 1, 2)],
    "unsqueezed": lambda d: [coo(d).unsqueeze(0), coo(d).permute(1, 0), coo(d).transpose(0, 1)],
    "like a dense one": lambda d: torch.zeros_like(matrix(d), layout=torch.sparse_coo),
    "blocks": lambda d: [matrix(d)[:2].to_sparse_bsr((2, 2)), torch.zeros_like(matrix(d)[:2].to_sparse_bsr((2, 2)))],
    "converted": lambda d: csr(d).to_sparse_csc(),
    "csr sum": lambda d: csr(d).sum(),
    "softmax of a large tensor": lambda d: torch.sparse.softmax(
        torch.sparse_coo_tensor([[0, 9], [1, 9], [2, 2]], [1.0, 2.0], (1 << 17, 1 << 17, 3), device=d), 2
    ),
    "csr and csc": lambda d: csr(d).mm(csr(d).t()),
    "csr changed": lambda d: [csr(d).mul_(2), csr(d).zero_().to_dense()],
    "out": lambda d: torch.mm(coo(d), matrix(d).t(), out=torch.empty(0, device=d)),
    "half": lambda d: coo(d).half().to_dense(),
    "compared": lambda d: [torch.equal(matrix(d), coo(d).to_dense()), torch.any(coo(d).coalesce().to_dense())],
}


def _agree(make: Callable[[str], Any]) -> None:
    equal(make("cuda"), make("cpu"))


@pytest.mark.parametrize("name", ON_DEVICE)
def test_sparse_tensors_on_the_device(name: str) -> None:
    before = dict(stats()["fallbacks"])
    _agree(ON_DEVICE[name])
    assert stats()["fallbacks"] == before


@pytest.mark.parametrize("name", ANYWHERE)
def test_sparse_tensors(name: str) -> None:
    _agree(ANYWHERE[name])


def test_sums_are_as_long_as_those_of_cuda() -> None:
    """They are put one after the other, without a question to the node, until they would be more than a dense tensor has."""
    x = coo("cuda")
    assert [(x + x)._nnz(), (x + x + x)._nnz(), (x + x + x + x)._nnz()] == [8, 12, 3]


@pytest.mark.parametrize("make", [coo, csr], ids=["coo", "csr"])
def test_gradients_of_products(make: Callable[[str], torch.Tensor]) -> None:
    def gradients(device: str) -> list[Any]:
        left = make(device).requires_grad_()
        right = matrix(device).t().contiguous().requires_grad_()
        (torch.sparse.mm(left, right) if make is coo else left @ right).square().sum().backward()
        return [right.grad, left.grad.to_dense() if left.grad is not None else None]

    equal(gradients("cuda"), gradients("cpu"))


def test_gradients_reach_values_and_dense_forms() -> None:
    def gradients(device: str) -> list[Any]:
        values = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
        x = torch.sparse_coo_tensor(torch.tensor([[0, 1, 1], [2, 0, 2]], device=device), values, (2, 3))
        (x.to_dense() * torch.arange(6.0, device=device).view(2, 3)).sum().backward()
        return [values.grad]

    equal(gradients("cuda"), gradients("cpu"))


@pytest.mark.parametrize("optimizer", [torch.optim.SparseAdam, torch.optim.SGD, torch.optim.Adagrad])
def test_embeddings_train_by_sparse_gradients(optimizer: Any) -> None:
    def trained(device: str) -> list[Any]:
        torch.manual_seed(0)
        table = torch.nn.Embedding(10, 4, sparse=True, padding_idx=2)
        bag = torch.nn.EmbeddingBag(10, 4, sparse=True, mode="sum")
        model = torch.nn.ModuleList([table, bag]).to(device)
        made = optimizer(model.parameters(), lr=0.1)
        for _ in range(3):
            made.zero_grad()
            words = torch.tensor([[1, 3, 1], [5, 2, 9]], device=device)
            (model[0](words).square().sum() + model[1](words).square().sum()).backward()
            made.step()
        return [p.detach() for p in model.parameters()]

    equal(trained("cuda"), trained("cpu"))


@pytest.mark.parametrize("options", [{}, {"mode": "sum", "padding_idx": 2}, {"padding_idx": 2}, {"mode": "sum", "weighted": True}], ids=str)
def test_gradients_of_bags_are_sparse(options: dict[str, Any]) -> None:
    weighted, before = options.get("weighted", False), dict(stats()["fallbacks"])

    def gradients(device: str) -> list[Any]:
        torch.manual_seed(0)
        bags = torch.nn.EmbeddingBag(10, 3, sparse=True, **{k: v for k, v in options.items() if k != "weighted"}).to(device)
        indices, offsets = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9], device=device), torch.tensor([0, 3, 3, 6], device=device)
        weights = torch.linspace(0.1, 1, 8, device=device).requires_grad_() if weighted else None
        bags(indices, offsets, per_sample_weights=weights).square().sum().backward()
        assert bags.weight.grad is not None
        return [bags.weight.grad, weights.grad if weights is not None else None]

    equal(gradients("cuda"), gradients("cpu"))
    assert stats()["fallbacks"] == before


def test_gradients_of_reductions_over_rows() -> None:
    def gradients(device: str) -> list[Any]:
        left, right = csr(device).requires_grad_(), matrix(device).t().contiguous().requires_grad_()
        torch.sparse.mm(left, right, "amax").square().sum().backward()
        return [left.grad, right.grad]

    equal(gradients("cuda"), gradients("cpu"))


def test_a_sparse_tensor_is_printed_saved_and_loaded() -> None:
    x = coo("cuda")
    assert "layout=torch.sparse_coo" in repr(x) and "device='cuda:0'" in repr(x) and "nnz=4" in repr(x)
    saved = io.BytesIO()
    torch.save([x, csr("cuda")], saved)
    saved.seek(0)
    back = torch.load(saved)
    equal(back, [coo("cpu"), csr("cpu")])
    assert x.is_cuda and x.cpu().device.type == "cpu" and x.is_sparse


@pytest.mark.parametrize(
    "call",
    [
        lambda d: torch.sparse_coo_tensor(torch.tensor([[0, 9]], device=d), torch.ones(2, device=d), (3,)),
        lambda d: torch.sparse_coo_tensor(torch.tensor([[0, 1, 2]], device=d), torch.ones(2, device=d), (3,)),
        lambda d: coo(d) @ torch.ones(3, device=d),
        lambda d: coo(d).values(),
        lambda d: coo(d).view(4, 3),
        lambda d: coo(d).storage(),
        lambda d: csr(d).mv(torch.ones(3, device=d)),
        lambda d: coo(d) + torch.ones(3, 4, device=d),
        lambda d: coo(d).argmax(),
    ],
)
def test_mistakes_raise_what_they_raise_on_the_cpu(call: Callable[[str], Any]) -> None:
    def outcome(device: str) -> Any:
        try:
            return call(device)
        except Exception as error:  # the class is what is compared
            return type(error)

    ours, cpu = outcome("cuda"), outcome("cpu")
    assert ours is cpu if isinstance(cpu, type) else equal(ours, cpu) is None


_LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
_SAMPLES = 2
_NOT_COMPARED = (
    *("rand", "normal", "bernoulli", "dropout", "multinomial", "cauchy", "exponential", "geometric", "uniform"),
    *("empty", "new_ones", "new_full"),  # the CPU leaves indices of compressed tensors uninitialised
)
_EVERY = 5
"""Of the operators, one in so many for each layout: others for the next."""


def _samples(op: Any, layout: torch.layout, dtype: torch.dtype) -> Iterator[Any]:
    """torch's own samples of the layout, and dense ones of matrices with the first argument in this layout."""
    with contextlib.suppress(NotImplementedError, unittest.SkipTest):  # torch has none of this layout
        yield from itertools.islice(op.sample_inputs_sparse(layout, "cpu", dtype), _SAMPLES)
    dense = [s for s in op.sample_inputs("cpu", dtype) if isinstance(s.input, torch.Tensor) and s.input.dim() == 2][:_SAMPLES]
    for sample in dense:
        block = (1, 1) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
        sample.input = sample.input.detach().to_sparse(layout=layout, blocksize=block)
        yield sample


def _outcome(op: Any, sample: Any, device: str) -> Any:
    def moved(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().to(device)
        return device if leaf in ("cpu", torch.device("cpu")) else leaf

    given, args, kwargs = (tree_map(moved, part) for part in (sample.input.clone(), sample.args, sample.kwargs))
    try:
        return op(given, *args, **kwargs)
    except Exception as error:  # the class is what is compared
        return type(error)


def _difference(ours: Any, cpu: Any) -> str:
    if isinstance(cpu, type) or isinstance(ours, type):
        return "" if isinstance(cpu, type) and isinstance(ours, type) and issubclass(ours, cpu) else f"{ours}, expected {cpu}"
    try:
        equal(ours, cpu)
    except Exception as error:
        return str(error)
    return ""


@pytest.mark.parametrize("layout", [_LAYOUTS[0], *(pytest.param(layout, marks=pytest.mark.variant) for layout in _LAYOUTS[1:])], ids=str)
def test_torchs_operators_do_to_sparse_tensors_what_they_do_on_the_cpu(layout: torch.layout) -> None:
    computed, different = 0, []
    for op in op_db[_LAYOUTS.index(layout) :: _EVERY]:
        if torch.float32 in op.supported_dtypes("cpu") and not any(part in op.name for part in _NOT_COMPARED):
            for sample in _samples(op, layout, torch.float32):
                cpu, ours = (_outcome(op, sample, device) for device in ("cpu", "cuda"))
                difference = _difference(ours, cpu)
                different += [f"{op.name}: {difference[:300]}"] if difference else []
                computed += not isinstance(cpu, type)
    assert different == [] and computed > 10
