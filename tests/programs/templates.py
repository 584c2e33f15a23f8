"""What a line of a program may be. ``$`` names a field (script.Fields): ``$x`` any tensor, ``$y`` what broadcasts with it, ``$d`` one of
its dimensions, ``$n`` a number. An expression becomes an assignment; ``!`` marks statements; ``|`` without a space before it ends a line.

Four tables, by two questions: does the result round, and is the operation continuous (may it look at values that are rounded).
"""

from __future__ import annotations

import re
from typing import Final

__all__ = [
    "VIEWS",
    "EXACT",
    "EXACT_JUMPS",
    "IN_PLACE",
    "IN_PLACE_JUMPS",
    "CONSTANTS",
    "ROUNDED",
    "ROUNDED_JUMPS",
    "GRADIENTS",
    "READS",
    "CONTROL",
]


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().split("\n") if line.strip() and not line.strip().startswith("#"))


VIEWS: Final = _lines("""
    $x.transpose($d, $d2)
    $x.narrow($d, $sz // 2, $sz - $sz // 2)
    $x[$p - 1:]
    $x[:-1]
    $x[..., ::$p]
    $x[$k]
    $x[$k, ...]
    $x[None, ..., None]
    $x[:, None]
    $x[..., -1:]
    $x[..., 1:3]
    $x.unsqueeze(0)
    $x.unsqueeze(-1)
    $x.squeeze()
    $x.squeeze($d)
    $x.reshape(-1)
    $x.flatten()
    $x.select($d, $k)
    $x.unfold($d, 1, 1)
    $x.unfold($d, 2, 1)
    $x.unfold($d, 2, 3)
    $x.diagonal()
    $x.diagonal($k)
    $x.expand(2, *[-1] * $x.dim())
    $x.expand(3, *$x.shape)
    $x.unsqueeze(0).expand(2, *$x.shape)[1:]
    $x.mT
    $x.T if $x.dim() == 2 else $x
    $x.conj()
    $x.view_as(torch.empty_like($x))
    $x.movedim($d, $d2)
    $x.swapaxes($d, $d2)
    $x.permute(*range($x.dim() - 1, -1, -1))
    $x.detach()
    $x.chunk(2, $d)[-1]
    $x.chunk(3, $d)[0]
    $x.split($p, $d)[0]
    $x.tensor_split(2, $d)[-1]
    $x.unbind($d)[0]
    $x.real
    $x.imag
    $x.conj().imag
    $x.conj().real
    $x.resolve_conj()
    torch.view_as_real($c)
    $x.data
    $x.as_strided((2,), (1,), $p - 1) if $x.numel() > 3 else $x
    $x.as_strided((2, 2), (1, 1)) if $x.numel() > 2 else $x
    $x.as_strided((1, 3), (7, 0), 0) if $x.numel() else $x
    $x.clone()
    $x.contiguous()
    $x.view(-1)
    $x.view($x.shape)
    $x.reshape($x.shape[::-1])
    $x.ravel()
    $x.unflatten($d, (1, -1))
    $x.flatten(0, -1)
    $x.expand_as($x)
    $x.squeeze(0)
    torch.atleast_2d($x)
    torch.broadcast_to($x, (2, *$x.shape))
    torch.broadcast_tensors($x, $x2)[0]
    $x.positive()
    $x.view(*$x.shape, 1)
    $x.clone(memory_format=torch.contiguous_format)
    $x.t()
    $x.unsqueeze(1).squeeze(1)
    $x.hsplit(1)[0]
    $x.vsplit(1)[0]
""")

EXACT: Final = _lines("""
    $x + $y
    $y - $x
    $x * $y
    torch.add($x, $y, alpha=2)
    torch.sub($x, $y, alpha=3)
    torch.rsub($x, $y)
    $x.subtract($y)
    torch.maximum($x, $z)
    torch.minimum($x, $z)
    torch.fmax($x, $z)
    torch.where($b, $x, $y)
    torch.where($b, $n, $x)
    torch.where($b, $n, $n2)
    -$x
    abs($x)
    $x.neg()
    $x.square().clamp(-8, 8)
    $x.pow(2).clamp(-8, 8)
    $x ** 3 % 16
    $x.pow(0)
    $x / 2
    $x.div(4.0)
    $x / $y if not isinstance($y, torch.Tensor) and $y in (2, 0.5) else $x
    $x.true_divide(2)
    $x.sum($d, keepdim=$keep).clamp(-8, 8)
    $x.sum().clamp(-8, 8)
    $x.sum($d, dtype=torch.float64).clamp(-8, 8)
    $x.sum((0, -1))
    $x.sum(dim=())
    $x.nansum($d)
    $x.amax($d, keepdim=$keep)
    $x.amin($d, keepdim=$keep)
    $x.aminmax().max
    $x.amax((0, -1))
    $x.max()
    $x.min()
    $x.max($d).values
    $x.min($d, keepdim=$keep)[0]
    $x.cumsum($d).clamp(-8, 8)
    $x.cumsum($d, dtype=torch.float32).clamp(-8, 8)
    $x.cummax($d)[0]
    $x.cummin($d)[0]
    $x.sort($d, stable=True)[0]
    $x.sort($d, descending=True)[0]
    torch.msort($x)
    $x.topk(1, $d)[0]
    $x.topk($sz, $d, largest=False)[0]
    $x.kthvalue(1, $d)[0]
    $x.contiguous().median($d)[0]
    $x.median() if $x.numel() else $x
    $x.nanmedian() if $x.numel() else $x
    $x[$i]
    $x[..., $i]
    $x[$i, 0]
    $x[:, $i]
    $x[$i][:, None]
    $x[[0, -1]]
    $x[[0], ..., [-1]]
    $x[$i[:, None], $i % 1]
    $x[None, $i]
    $x[torch.tensor(0, device=dev)]
    $x[torch.tensor([True, False], device=dev)]
    $x[True]
    $x.index_select($d, $i)
    torch.take_along_dim($x, $l.abs() % $sz, $d)
    $x.gather($d, $l.long() % $sz)
    $x.gather($d, index($seed, $sz, $x.shape, dev))
    $x.take($l.long() % max($x.numel(), 1))
    torch.cat([$x, $z], $d)
    torch.cat([$x, $x[:0], $z], 0)
    torch.cat([torch.empty(0, device=dev), $x.flatten()])
    torch.cat([$x.flatten(), $z.flatten(), torch.ones((), device=dev)[None]])
    torch.stack([$x, $x * 2, -$x], $d)
    torch.stack([$x.sum(), $z.sum()]).clamp(-8, 8)
    torch.hstack([$x, $x])
    torch.vstack([$x, $x])
    torch.dstack([$x, $x])
    torch.column_stack([$x, $x])
    torch.block_diag($x, $x)
    $x.flip($d)
    $x.flip(0, -1)
    $x.fliplr()
    $x.roll($k, $d)
    $x.roll((1, -1), (0, -1))
    $x.roll($p)
    $x.repeat_interleave(2, $d)
    $x.repeat_interleave(torch.arange($sz, device=dev), $d)
    $x.repeat(*[2] * $x.dim())[:9]
    $x.repeat(2, *[1] * $x.dim())
    $x.tile((2,))
    $x.tril($k)
    $x.triu($k)
    torch.diag_embed($x)
    torch.diag($x)
    $x.trace()
    $x.to($dt)
    $x.to($fdt)
    $x.type($fdt)
    $x.double()
    $x.float()
    $x.type_as($z) if not $x.is_complex() else $x
    torch.zeros_like($x) + $y
    torch.ones_like($x) * $y
    torch.full_like($x, 2) - $y
    $x.new_full((2, 3), 2)
    $x.new_tensor([1, 2])
    $x.new_zeros($shape) + $n
    $x.new_ones(3)
    ($x @ $z).clamp(-8, 8)
    ($x.float() @ $x.float().mT).clamp(-8, 8)
    torch.mm($x.reshape(-1, $sz), $x.reshape($sz, -1)).clamp(-8, 8)
    torch.einsum('...i,...i->...', $x.double(), $x.double()).clamp(-8, 8)
    torch.einsum('ij,kj->ik', $x.reshape(-1, $sz).float(), $x.reshape(-1, $sz).float()).clamp(-8, 8)
    torch.tensordot($x.double(), $x.double(), dims=([$d], [$d]))
    torch.outer($x.flatten()[:5], $x.flatten()[:3]).clamp(-8, 8)
    torch.dot($x.flatten(), $x.flatten()).clamp(-8, 8)
    torch.inner($x, $x).clamp(-8, 8)
    torch.kron($x, torch.eye(2, device=dev)).clamp(-8, 8)
    torch.cross($x.reshape(-1)[:3], $x.flip(0).reshape(-1)[:3], dim=0)
    torch.addmm($n, $x, $x.mT)
    F.pad($x, (1, 2), value=3)
    F.pad($x, (-1, 1))
    F.pad($f, (0, 1, 2, 0), value=-1.0)
    F.pad($f.reshape(1, 1, -1), (1, 1), mode='replicate')
    F.pad($f.reshape(1, 1, -1), (1, 1), mode='circular')
    F.pad($f.reshape(1, 1, 1, -1), (1, 0, 0, 0), mode='reflect')
    $x.nan_to_num()
    $x.diff(dim=$d)
    torch.diff($x, prepend=$x)
    F.relu($x)
    F.relu6($f)
    F.hardtanh($f, -1, 2)
    F.leaky_relu($f, 0.5)
    F.prelu($f, torch.full((1,), 0.25, device=dev).to($f.dtype))
    F.threshold($f, 0.0, 0.0)
    $x.clamp(min=$z)
    $x.clamp($k, 3)
    $x.clamp(max=$n)
    torch.clip($x, -1, 1)
    torch.lerp($f, $f + 2, 0.5)
    torch.addcmul($f, $f, $f, value=2).clamp(-8, 8)
    $x.prod($d).clamp(-8, 8)
    torch.complex($r, $r)
    $x + 1j
    $x * (1 - 2j)
    $x.mean($d) if $sz in (1, 2, 4) and $x.is_floating_point() else -$x
    F.max_pool1d($f.reshape(1, -1), 2)
    F.avg_pool1d($f.reshape(1, -1), 2)
    F.max_pool2d($f.reshape(1, 1, -1, 1), (2, 1), stride=1)
    F.embedding($l.long() % 4, make(3, (4, 3), 'float32', dev))
    torch.vmap(lambda r: r + 1)($x)
    torch.vmap(lambda r: (r * 2).sum())($x).clamp(-8, 8)
    F.unfold($f.reshape(1, 1, -1, 1), (2, 1))
    F.interpolate($f.reshape(1, 1, -1), scale_factor=2)
    F.interpolate($f.reshape(1, 1, 1, -1), size=(2, 5), mode='nearest')
    F.pixel_shuffle(make($seed, (1, 4, 2, 3), 'float32', dev), 2)
    F.pixel_unshuffle(make($seed, (1, 1, 4, 2), 'float32', dev), 2)
    F.channel_shuffle(make($seed, (1, 4, 2, 2), 'float32', dev), 2)
    F.conv1d(make($seed, (1, 2, 5), 'float32', dev), make(3, (2, 2, 3), 'float32', dev), padding=$p)
    F.conv2d(make($seed, (1, 2, 4, 5), 'float32', dev), make(3, (4, 1, 2, 2), 'float32', dev), groups=2, stride=$p)
    F.conv_transpose2d(make($seed, (1, 2, 3, 3), 'float32', dev), make(3, (2, 1, 2, 2), 'float32', dev), stride=2)
    F.linear($f, make(4, (3, $f.shape[-1] if $f.dim() else 1), str($f.dtype)[6:], dev))
    torch.meshgrid($x.flatten()[:3], $x.flatten()[:2], indexing='ij')[1]
    torch.cartesian_prod($x.flatten()[:3], $x.flatten()[:2])
    torch.combinations($x.flatten()[:4])
    torch.scatter($x, $d, index($seed, $sz, $x.shape, dev)[..., :1], 2) if $x.dim() == 1 else $x
    torch.scatter_add($x, $d, index($seed, $sz, $x.shape, dev), $x)
    torch.index_add($x, $d, $i, $x.index_select($d, $i))
    torch.index_copy($x, $d, $ui, $x.index_select($d, $ui2 if False else $ui))
    torch.index_fill($x, $d, $ui, 1)
    torch.scatter_reduce($x, $d, index($seed, $sz, $x.shape, dev), $x, reduce='amax')
    torch.scatter_reduce($x, $d, index($seed, $sz, $x.shape, dev), $x, reduce='sum', include_self=False)
    torch.index_reduce($f, $d, $i, $f.index_select($d, $i), 'amin')
    torch.select_scatter($x, $x.select($d, 0) * 2, $d, 0)
    torch.slice_scatter($x, $x[1:] + 1, 0, 1)
    torch.diagonal_scatter($x, $x.diagonal() - 1)
    torch.narrow_copy($x, $d, 0, 1)
    torch.masked_fill($x, $b, $n)
    torch.logical_not($b).to($dt)
    $x.sgn() if $x.is_complex() and False else $x.ne(0) if False else -$x
    $x.flatten().unfold(0, 2, 1).sum(-1).clamp(-8, 8)
    $x.reshape(-1, 1) * $x.reshape(1, -1)
    torch.movedim($x, 0, -1).contiguous()
    $x.to(memory_format=torch.preserve_format)
    torch.empty_like($x).copy_($x)
    torch.empty($shape, device=dev).fill_($n)
    torch.zeros_like($x, dtype=torch.int64)
    $x.detach().clone().to('cpu').to(dev)
    torch.from_numpy($x.float().cpu().detach().numpy().copy()).to(dev)
    torch.nn.utils.rnn.pad_sequence([$x.flatten()[:3], $x.flatten()[:1]], batch_first=$flag)
    with_default(torch.float64, lambda: torch.full((2, 3), $n, device=dev) + torch.ones(3, device=dev) / 2)
    with_default(torch.float64, lambda: torch.tensor([0.5, $n], device=dev) * torch.arange(0, 1, 0.5, device=dev))
    with_default($half, lambda: torch.zeros($shape, device=dev) + $x)
    with_default(torch.float64, lambda: $l / 2 + torch.ones((), device=dev))
    torch.trapezoid($f.float()) if $f.dim() else $f
    torch.vander($x.flatten()[:3].clamp(-2, 2), 3)
    torch.hypot($f * 3, $f * 4) if False else $f
    torch.cov($x.float()) if False else $x
    torch.movedim($x, (0,), (-1,))
    torch.rot90($x) if $x.dim() > 1 else $x
    torch.copysign($f, $f2 + $f2.eq(0))
    torch.ldexp($f, torch.tensor(2, device=dev))
    torch.frexp($f)[0]
    $x.expand(2, *$x.shape).reshape(-1)[::2]
    torch.unravel_index(torch.tensor([0], device=dev), (2, 3))[0]
    torch.segment_reduce(make($seed, (6,), 'float32', dev), 'max', lengths=torch.tensor([2, 4], device=dev))
""")

EXACT_JUMPS: Final = _lines("""
    5 & $l
    5 ^ $l
    1 << $l.abs().clamp(max=4)
    64 >> $l.abs().clamp(max=4)
    $l << $l2.abs().clamp(max=3)
    $l >> $l2.abs().clamp(max=3)
    7 % $l.abs().clamp(min=1)
    7 // $l.abs().clamp(min=1)
    $x.fmod($x2.abs().clamp(min=1)) if $x2.dtype != torch.bool else $x
    $x % $z.abs().clamp(min=1) if $z.dtype != torch.bool else $x
    torch.isin(2, $x)
    torch.isin($x, 1)
    torch.isin($x, $z.contiguous())
    $x.any((0, -1))
    $x.all((0, -1))
    torch.count_nonzero($x, dim=(0, -1))
    $v = torch._foreach_sign([$f, $f2])
    $v = torch._foreach_round([$f / 2, $f2])
    $v = torch._foreach_max([$f + 0, $f2 + 0])
    torch.floor_divide($x, 2)
    torch.floor_divide(7, $l.abs().clamp(min=1))
    $x.divide($z.abs().clamp(min=1), rounding_mode='trunc') if $z.dtype != torch.bool else $x
    torch.scatter($x, $d, torch.zeros_like($x, dtype=torch.int64)[..., :1], 2, reduce='add') if $x.dim() == 1 else $x
    torch.fmin($x, $z)
    torch.clamp_max($x, $z)
    torch.copysign($f, $n)
    $v = torch._foreach_maximum([$f, $f2], 1.0)
    $v = torch._foreach_minimum([$f, $f2], [$f + 1, $f2 - 1])
    $v = torch._foreach_clamp_min([$f], [0.0])
    $v = torch._foreach_sub([$f, $f2], 2)
    $v = torch._foreach_div([$f, $f2], 2.0)
    $v = torch._foreach_add([$f], torch.full((), 2.0, device=dev))
    torch.where($x > 0, $x, $y)
    torch.where($x.bool(), $z, $n)
    torch.where($x == $y, 1.5, $x)
    $x $cmp $y
    $x $cmp $z
    $x $bit $y
    $l $bit $l2
    $l << $p
    $l >> $p
    ~$x
    $x.sign()
    $f.sign() * $f.abs()
    $x // 2
    $x // -3
    $x // 2.0
    $x % 2
    $x % -3
    $x % 3.0
    $y % 3 if isinstance($y, torch.Tensor) else $x % 5
    $x.fmod(2)
    $x.fmod(-3)
    $x.remainder(torch.tensor(3, device=dev))
    torch.div($x, 2, rounding_mode='trunc')
    torch.div($x, -2, rounding_mode='floor')
    torch.floor_divide($x, torch.tensor(2, device=dev))
    $x.max($d)
    $x.min($d)
    $x.argmax()
    $x.argmin($d)
    $x.any($d)
    $x.all()
    $x.all($d, keepdim=$keep)
    $x.any()
    $x.count_nonzero($d)
    $x.sort($d, stable=True)
    $x.sort($d, stable=True)[1]
    $x.argsort($d, descending=True, stable=True)
    $u.sort(-1, descending=$flag)
    $u.topk(1, -1)
    $u.argsort()
    $u.kthvalue(1)
    $u.contiguous().median(-1)
    $u.mode(-1)[0]
    $x.mode($d)[0]
    $x.cummax($d)[0]
    $u.cummin(0)
    torch.nan_to_num($x).unique()
    torch.nan_to_num($x).unique(return_inverse=True, return_counts=True)
    $x.unique_consecutive()
    torch.nan_to_num($x).unique(dim=0)
    $x.nonzero()
    $x.nonzero(as_tuple=True)
    torch.argwhere($x)
    $x[$x > 0]
    $x[$x.bool()]
    $x.masked_select($x < 2)
    torch.masked_select($x, $b)
    $x[$b]
    $x.isfinite()
    $x.isnan()
    $x.isinf()
    $x.isreal()
    $x.signbit()
    $f.isposinf() | $f.isneginf()
    F.one_hot($x.long() % 3, 3)
    F.one_hot($l.long() % 4)
    torch.bincount($x.long().flatten() % 4)
    torch.bincount($x.long().flatten() % 4, minlength=6, weights=$x.flatten().float())
    torch.histc($x.float(), 4, -4, 4)
    $x.trunc()
    $x.round()
    $f.floor()
    $f.ceil()
    $f.frac()
    $f.div(2).round()
    $f.div(4).round(decimals=0)
    torch.bucketize($x, torch.arange(3, device=dev).to($x.dtype))
    torch.searchsorted(torch.arange(-3, 3, device=dev).to($x.dtype), $x, right=$flag)
    $x.logical_xor($b)
    torch.logical_and($x, $z)
    torch.logical_or($x, $z)
    $x.logical_not()
    $x.bool()
    $x.to(torch.int8)
    $x.to(torch.uint8).to(torch.float32)
    $x.long()
    torch.isin($x, torch.tensor([1, 2], device=dev))
    torch.isclose($x, $z)
    $x.eq($y)
    $x.gt($n)
    torch.ne($x, $z)
    torch.heaviside($f, torch.tensor(0.5, device=dev).to($f.dtype))
    torch.nn.functional.hardshrink($f, 1.0)
    F.softshrink($f, 1.0)
    F.threshold($f, 1.0, 5.0)
    torch.equal($x, $x.clone())
    torch.allclose($x, $x)
    $l.gcd($l2)
    $l.lcm(torch.tensor(4, device=dev))
    $l.lcm($l2)
    $b.long().index_add(0, torch.zeros($b.size(0), dtype=torch.int64, device=dev), $b.long()) if $b.dim() else $b
    $b.index_put((torch.zeros(2, dtype=torch.int64, device=dev),), $b[:1].expand(2, *$b.shape[1:]), accumulate=True) if $b.dim() and $b.size(0) else $b
    $l.bitwise_not()
    $l.bitwise_left_shift(1)
    $l & 3
    3 | $l
    torch.bitwise_xor($l, 5)
    $x.tril().bool()
    torch.tril_indices(3, $p, device=dev)
    torch.diag($x.flatten()[:4].bool().long())
    torch.tensor($x.tolist(), device=dev)
    torch.tensor($x.flatten()[:1].sum().item(), device=dev)
    torch.as_tensor([$x.sum().item(), 1], device=dev)
    $x.cpu().numpy().sum().item()
    ($x > 0).float().mean() if $x.numel() in (1, 2, 4) else ($x > 0).sum()
    ($x > 0).sum($d)
    ($x > 0).cumsum($d)
    ($x != 0) & ($x < 2)
    torch.where($x > 1)
    $x.index_select($d, ($x.flatten()[:2].long() % $sz).abs()) if not $x.is_complex() else $x
    ($x + $x.eq(0)).view(torch.uint8)
    ($x + $x.eq(0)).view(torch.int16)
    ($x.to(torch.float16) + 0).view(torch.int16) if not $x.is_complex() else $x
    ($x.float() + 0).view(torch.int32)
    torch.cummin($x, $d)[0]
    torch.aminmax($x, dim=$d)
    torch.scatter($x, 0, torch.zeros_like($x[:1], dtype=torch.int64), $x[:1] + 1)
    torch.masked_scatter($x, $x > 0, make(5, (400,), str($x.dtype)[6:], dev))
    torch.nn.functional.max_pool2d($u.reshape(1, 1, -1, 1), (2, 1), return_indices=True)
    F.adaptive_max_pool1d($u.reshape(1, 1, -1), 1, return_indices=True)
    F.max_unpool1d(torch.tensor([[[1., 2.]]], device=dev), torch.tensor([[[1, 2]]], device=dev), 2)
    F.nll_loss(make($seed, (3, 4), 'float32', dev), index($seed, 4, (3,), dev), reduction='sum')
    $x.copy_($x).eq($x).all()
    torch.result_type($x, $y)
    $x.is_floating_point()
    torch.promote_types($x.dtype, $z.dtype)
""")

CONSTANTS: Final = _lines("""
    torch.full($shape, $n, device=dev)
    torch.full($shape, $n, dtype=$dt, device=dev)
    torch.full((), $q, device=dev)
    torch.full((), $n, dtype=$fdt, device=dev)
    torch.zeros($shape, dtype=$dt, device=dev)
    torch.ones($shape, device=dev)
    torch.ones((), device=dev)
    torch.tensor($n, device=dev)
    torch.tensor([$n, $n2, $q], device=dev)
    torch.scalar_tensor($n, device=dev)
    torch.eye(3, device=dev)
    torch.eye(2, $p, dtype=$dt, device=dev)
    torch.arange($p, 7, device=dev)
    torch.arange(5, 0, -$p, device=dev)
    torch.arange(0, 2, 0.5, device=dev)
    torch.linspace(-1, 1, 5, device=dev)
    torch.linspace(0, 4, 5, dtype=$fdt, device=dev)
    torch.stack([torch.full((), $n, device=dev), torch.full((), $n2, device=dev)])
    torch.stack([torch.full((), $q, device=dev), torch.full((), $n2, device=dev)]) * $p
    torch.stack([torch.full($shape, 1.5, device=dev), torch.full($shape, 2.5, device=dev)], -1) + $n
    torch.cat([torch.full((1,), 1.5, device=dev), torch.full((1,), 2.5, device=dev), torch.full((1,), 3.5, device=dev)]) + $n
    torch.cat([torch.zeros(2, device=dev), torch.ones(3, device=dev), torch.full((1,), $n, device=dev)])
    torch.cat([torch.ones(1, 2, device=dev), make($seed, (2, 2), 'float32', dev)]) * 2
    torch.stack([torch.zeros((), device=dev), torch.ones((), device=dev), $x.float().sum().clamp(-8, 8)])
    torch.zeros(3, device=dev).index_fill(0, torch.tensor([1], device=dev), $n)
    torch.zeros(2, 3, device=dev).fill_diagonal_(1)
    torch.full((2, 2), float('-inf'), device=dev).triu(1)
    torch.zeros(4, device=dev).scatter(0, torch.tensor([2], device=dev), 1.0)
    torch.stack([torch.stack([torch.ones((), device=dev), torch.zeros((), device=dev)]), torch.tensor([$n, 2.0], device=dev)])
    torch.ones(3, device=dev) * torch.full((), $q, device=dev)
    torch.empty(2, 2, device=dev).fill_($n)
    torch.tril(torch.ones(3, 3, dtype=torch.bool, device=dev))
    torch.tensor(float('nan'), device=dev)
    torch.tensor([inf, -inf, nan, 0.0], device=dev)
    torch.where(torch.tensor([True, False], device=dev), torch.full((), 1.5, device=dev), torch.full((), 2.5, device=dev))
    torch.full((3,), 7, dtype=torch.int32, device=dev) // torch.full((), 2, dtype=torch.int32, device=dev)
    torch.ones(2, 2, device=dev).mul_(3).sub_(torch.full((2, 1), $n, device=dev))
    torch.tensor([], device=dev)
    torch.zeros(0, 3, device=dev).sum(0)
    torch.ones(2, 0, device=dev).prod(1)
    torch.logspace(0, 2, 3, base=2, device=dev)
    torch.complex(torch.ones(2, device=dev), torch.full((2,), 2.0, device=dev))
    !$new = torch.zeros(2, 3, device=dev); $new[0] = 1.5; $new[1] = 2.5
    !$new = torch.empty(3, device=dev); $new[0] = $n; $new[1] = $n2; $new[2] = $q
    !$new = torch.zeros(2, 2, device=dev); $new[0, 0] = torch.full((), $q, device=dev); $new[1, 1] = 1
    !$new = torch.ones(4, device=dev); $new[1:3] = torch.full((), $n, device=dev); $new *= 2
""")

IN_PLACE: Final = _lines("""
    !$x.add_($y)
    !$x += $y
    !$x -= $y
    !$x *= $n
    !$x /= 2
    !$x.sub_($y, alpha=2)
    !$x.mul_($y).clamp_(-8, 8)
    !$x.copy_($apart)
    !$x.zero_()
    !$x.fill_($n)
    !$x.fill_(torch.full((), $n, device=dev))
    !$x.neg_()
    !$x.abs_()
    !$x.clamp_(-2, 3)
    !$x.clamp_min_(0)
    !$x.clamp_max_($n)
    !$x.masked_fill_($b, $n)
    !$x[1:] = $apart
    !$x[..., 0] = $n
    !$x[$k] = $n
    !$x[..., ::2] = $y
    !$x[$i] = $n
    !$x[$ui] = $x[$ui].flip(0)
    !$x[$i, ...] = torch.full((), $n, device=dev)
    !$x[..., $i] += 1
    !$x[:, $i] = 0
    !$x[None] = 1
    !$x[0, 0] = $apart
    !$x[...] = $apart
    !$x[:] = $apart
    !$x[torch.tensor([True, False], device=dev)] = 3
    !$x.index_add_($d, $i, $x.index_select($d, $i))
    !$x.index_copy_($d, $ui, $x.index_select($d, $ui).flip($d))
    !$x.index_put_(($i,), torch.ones((), dtype=$x.dtype, device=dev), accumulate=True)
    !$x.index_put_(($ui,), torch.ones((), dtype=$x.dtype, device=dev))
    !$x.index_fill_($d, $i, 2)
    !$x.scatter_add_($d, index($seed, $sz, $x.shape, dev), $x.clone())
    !$x.scatter_($d, torch.argsort(distinct($seed, $x.shape, 'float32', dev), $d), $x.clone())
    !$x.scatter_($d, index($seed, $sz, $x.shape, dev), 2)
    !$x.scatter_reduce_($d, index($seed, $sz, $x.shape, dev), $x.clone(), 'amin')
    !$x.put_(torch.tensor([0], device=dev), $x.flatten()[:1] + 1)
    !$x[1:] = $x[:-1].clone()
    !$x[1:].add_($x[:-1].clone())
    !$x.transpose_(0, -1)
    !$x.t_()
    !$x.unsqueeze_(0)
    !$x.squeeze_()
    !$x.swapaxes_(0, -1)
    !$x.resize_(0)
    !$x.fill_diagonal_(3)
    !$x.tril_()
    !$x.triu_(1)
    !torch.maximum($x, $z, out=$out)
    !torch.add($x, $y, out=$out)
    !torch.mul($x, 2, out=$x)
    !torch.sub($x, $y, out=torch.empty(0, device=dev))
    !torch.cat([$x, $x], out=$out)
    !torch.stack([$x, $x], out=$out)
    !torch.sum($x, 0, dtype=torch.float64, out=$out)
    !torch.neg($x, out=$x[...])
    !torch.matmul($x, $x, out=$out)
    !torch.index_select($x, $d, $i, out=$out)
    !torch.clamp($x, -1, 1, out=$x)
    !torch.where($b, $x, $z, out=$out)
    !torch.arange(3, out=$out)
    !torch.cumsum($x, 0, out=$out)
    !torch.amax($x, 0, out=$out)
    !$x.addcmul_($apart, $w, value=1).clamp_(-8, 8)
    !$x.lerp_($x.clone() + 2, 0.5)
    !$x.swapdims_(0, -1).copy_($x.clone())
    !$x.relu_()
    !F.relu($x, inplace=True)
    !F.hardtanh_($f, -1, 1)
    !F.leaky_relu($f, 0.25, inplace=True)
    !torch._foreach_add_([$x, $x.clone()], 1)
    !torch._foreach_mul_([$f, $f.clone()], 2.0)
    !torch._foreach_add_([$f, $f.clone()], [$f.clone(), $f.clone()], alpha=0.5)
    !torch._foreach_addcmul_([$f], [$f.clone()], [$f.clone()], value=0.5)
    !torch._foreach_copy_([$f], [$f.clone() + 1])
    !torch._foreach_zero_([$f])
    !$x.view(-1)[::2].add_(1)
    !$packed.T.add_($packed)
    !$x.add_($x.T.clone())
    !$x.copy_($x.flip(0))
    !$x.flatten()[:1].fill_(5)
    !$x.reshape(-1)[-1:].mul_(2)
    !$x.unsqueeze(0).add_(1)
    !$x.diagonal().add_(1)
    !$x.select($d, 0).copy_($x.select($d, -1).clone())
    !$x.narrow($d, 0, 1).zero_()
    !$x.chunk(2, $d)[0].mul_(2)
    !$x.unbind(0)[0].fill_($n)
    !$x.expand(2, *$x.shape).add_(1)
    !$x.real.mul_(2)
    !if $x.numel() > 2:|    $x.as_strided((2,), (1,)).add_(1)
    !$x.detach().add_(1)
    !$x.data.mul_(2).clamp_(-8, 8)
    !$x.set_($z)
    !$x.data = $z
    !$x.swapaxes(0, -1).mul_(2)
    !$x.flip(0).add_(1)
    !$x.addmm_($x.clone(), $x.clone()).clamp_(-8, 8)
    !$x.square_().clamp_(-8, 8)
    !$x.pow_(2).clamp_(-8, 8)
    !$x.nan_to_num_()
    !$x.conj_physical_()
    !del $x
""")

IN_PLACE_JUMPS: Final = _lines("""
    !$x.masked_fill_($x > 0, $n)
    !$x.masked_fill_($x == 0, torch.full((), $n, device=dev))
    !$x[$x > 1] = 1
    !$x[$x > 1] = 0
    !$x[$x != 0] *= -1
    !$x[$b] = $n
    !$x[$x < 0] = $x[$x < 0].abs()
    !$x.masked_scatter_($x > 0, make(5, (400,), str($x.dtype)[6:], dev))
    !$x.bitwise_xor_($y)
    !$x.bitwise_and_($y)
    !$x |= $y
    !$x ^= 1
    !$x <<= 1
    !$x //= 2
    !$x %= 3
    !$x.floor_divide_(2)
    !$x.fmod_(3)
    !$x.remainder_(2)
    !$x.div_(2, rounding_mode='floor')
    !$x.logical_not_()
    !$x.logical_and_($y)
    !$x.eq_($y)
    !$x.gt_($n)
    !$x.sign_()
    !$f.round_()
    !$f.trunc_()
    !$f.floor_()
    !$f.ceil_()
    !$x.cumsum_(0).clamp_(-8, 8)
    !$x.cumprod_(0).clamp_(-8, 8)
    !torch.eq($x, $y, out=$out)
    !torch.sort($x, out=($out, torch.empty(0, dtype=torch.int64, device=dev)))
    !torch.max($x, 0, out=($out, torch.empty(0, dtype=torch.int64, device=dev)))
    !torch.argmax($x, out=$out)
    !torch.abs($x, out=$out)
    !torch.floor($x, out=$out)
    !torch.prod($x.sign(), 0, out=$out)
    !torch.square($f, out=$out)
    !torch.bitwise_not($x, out=$out)
    !torch.isin($x, $y, out=$out)
    !torch.nan_to_num($x, out=$out)
    !torch.nansum($x, 0, out=$out)
    !torch.masked_select($x, $b, out=$out)
    !torch.gather($x, $d, index($seed, $sz, $x.shape, dev), out=$out)
    !torch.nonzero($x, out=torch.empty(0, dtype=torch.int64, device=dev))
""")

ROUNDED: Final = _lines("""
    torch.nextafter($f, $f + 1)
    $f.exp().clamp(max=50)
    $f.clamp(-3, 3).exp()
    $f.clamp(-3, 3).exp2()
    $f.clamp(-3, 3).expm1()
    ($f.abs() + 0.5).log()
    ($f.abs() + 0.5).log2()
    ($f.abs() + 0.5).log10()
    $f.abs().log1p()
    ($f.abs() + 0.5).sqrt()
    ($f.abs() + 0.5).rsqrt()
    ($f.abs() + 0.5).reciprocal()
    ($f.abs() + 0.5).pow($a)
    ($f.abs() + 0.5) ** $f.clamp(-2, 2)
    2 ** $f.clamp(-3, 3)
    $f.sin()
    $f.cos()
    $f.clamp(-1, 1).tan()
    $f.tanh()
    $f.sigmoid()
    $f.clamp(-3, 3).sinh()
    $f.clamp(-3, 3).cosh()
    ($f.sigmoid() * 0.9).asin()
    ($f.sigmoid() * 0.9).acos()
    $f.atan()
    ($f.sigmoid() * 0.9).atanh()
    $f.asinh()
    ($f.abs() + 1.5).acosh()
    $f.erf()
    $f.erfc()
    ($f.tanh() * 0.9).erfinv()
    ($f.abs() + 0.5).lgamma()
    (rand($seed, (3, 4), 'float32', dev).abs() + 0.5).digamma()
    $f.sinc()
    $f.i0().clamp(max=100)
    ($f.sigmoid() * 0.8 + 0.1).logit()
    torch.special.entr($f.sigmoid())
    torch.special.xlog1py($f, $f.sigmoid())
    torch.xlogy($f, $f.abs() + 0.5)
    torch.special.ndtr($f)
    torch.special.log_ndtr($f.clamp(-3, 3))
    torch.special.expit($f)
    torch.special.i1e($f)
    torch.polygamma(1, ($f.abs() + 0.5).float())
    torch.atan2($f, $f.abs() + 1)
    torch.hypot($f, $f + 1)
    torch.logaddexp($f, $w)
    torch.logaddexp2($f, $w)
    $f / ($w.abs() + 0.5)
    $f / 3
    $a / ($f.abs() + 1)
    $f * $a
    $f + $a
    $f.mul($a).add($w)
    $f * $w
    $f - $w
    $f.lerp($w, $a)
    torch.lerp($f, $w, $w.sigmoid())
    torch.addcmul($f, $w, $w, value=$a)
    torch.addcdiv($f, $w, $w.abs() + 1, value=$a)
    $f.deg2rad()
    $f.rad2deg().clamp(-100, 100)
    F.gelu($f)
    F.gelu($f, approximate='tanh')
    F.silu($f)
    F.mish($f)
    F.softplus($f)
    F.softplus($f, beta=2, threshold=1)
    F.elu($f)
    F.elu($f, alpha=$a)
    F.celu($f, $a)
    F.selu($f)
    F.logsigmoid($f)
    F.hardswish($f)
    F.hardsigmoid(rand($seed, (3, 4), 'float32', dev))
    F.softsign($f)
    F.tanhshrink($f)
    F.leaky_relu($f, 0.1)
    F.glu(torch.cat([$f, $f], -1), -1)
    F.softmax($f, $d)
    F.softmax($f.masked_fill($b, float('-inf')) if $b.shape == $f.shape and not $b.all(-1).any() else $f, -1)
    F.log_softmax($f, $d)
    F.softmin($f, -1)
    F.softmax($f, -1, dtype=torch.float32)
    $f.logsumexp($d, keepdim=$keep)
    $f.logcumsumexp($d)
    $f.mean($d, keepdim=$keep)
    $f.mean()
    $f.mean((0, -1))
    $f.var($d)
    $f.std($d, keepdim=$keep) if $sz > 1 else $f
    $f.var(unbiased=False)
    $f.var($d, correction=0)
    torch.var_mean($f, $d, correction=0)
    torch.std_mean($f, unbiased=False)
    $f.norm()
    $f.norm(dim=$d)
    $f.norm(p=1, dim=$d)
    $f.norm(p=inf)
    $f.norm(p=3, dim=$d)
    torch.linalg.vector_norm($f, ord=2, dim=$d, keepdim=$keep)
    torch.linalg.norm($f)
    torch.linalg.matrix_norm($r.reshape(1, -1))
    F.normalize($f + 3, dim=$d)
    F.cosine_similarity($f + 3, $w + 3, dim=$d)
    F.pairwise_distance($r.reshape(1, -1), $r.reshape(1, -1) + 1)
    $f.renorm(2, $d, 1.0) if $f.dim() > 1 else $f
    ($f.abs() + 0.5).prod($d)
    ($f.abs() + 0.5).cumprod($d).clamp(-100, 100)
    $f.cumsum($d)
    $f.sum($d)
    $f.trapz(dim=$d)
    torch.trapezoid($f, dx=$a)
    torch.cumulative_trapezoid($r, dim=$d)
    $f @ $w.mT
    torch.matmul($f, $w.transpose(-1, -2))
    F.linear($f, rand(4, (3, $f.shape[-1] if $f.dim() else 1), str($f.dtype)[6:], dev), rand(5, (3,), str($f.dtype)[6:], dev))
    torch.einsum('...i,...i->...', $f, $w)
    torch.einsum('bij,bjk->bik', rand($seed, (2, 3, 4), 'float32', dev), rand(1, (2, 4, 2), 'float32', dev))
    torch.einsum('bhqd,bhkd->bhqk', rand($seed, (1, 2, 3, 4), 'float32', dev), rand(1, (1, 2, 5, 4), 'float32', dev))
    torch.einsum('i,j->ij', $r.flatten()[:4], $r.flatten()[:3])
    torch.bmm(rand($seed, (2, 3, 4), 'float32', dev), rand(1, (2, 4, $p), 'float32', dev))
    torch.baddbmm(rand(2, (3, 2), 'float32', dev), rand($seed, (2, 3, 4), 'float32', dev), rand(1, (2, 4, 2), 'float32', dev), beta=$a)
    torch.addmm(rand(2, (2,), 'float32', dev), rand($seed, (3, 4), 'float32', dev), rand(1, (4, 2), 'float32', dev), alpha=$a)
    torch.addmv(rand(2, (3,), 'float32', dev), rand($seed, (3, 4), 'float32', dev), rand(1, (4,), 'float32', dev))
    torch.addr(rand(2, (3, 4), 'float32', dev), rand($seed, (3,), 'float32', dev), rand(1, (4,), 'float32', dev))
    torch.chain_matmul(rand(1, (2, 3), 'float32', dev), rand(2, (3, 4), 'float32', dev), rand(3, (4, 2), 'float32', dev))
    torch.linalg.multi_dot([rand(1, (2, 3), 'float32', dev), rand(2, (3, 4), 'float32', dev), rand(3, (4, 2), 'float32', dev)])
    torch.mv(rand($seed, (3, 4), 'float32', dev), rand(1, (4,), 'float32', dev))
    torch.cdist(rand($seed, (3, 4), 'float32', dev), rand(1, (2, 4), 'float32', dev))
    torch.cdist(rand($seed, (3, 4), 'float32', dev), rand(1, (2, 4), 'float32', dev), p=1)
    F.bilinear(rand($seed, (3, 2), 'float32', dev), rand(1, (3, 4), 'float32', dev), rand(2, (5, 2, 4), 'float32', dev))
    torch.cov(rand($seed, (3, 5), 'float32', dev))
    torch.corrcoef(rand($seed, (3, 5), 'float32', dev))
    torch.linalg.inv(rand($seed, (3, 3), 'float32', dev) + 4 * torch.eye(3, device=dev))
    torch.linalg.solve(rand($seed, (3, 3), 'float32', dev) + 4 * torch.eye(3, device=dev), rand(1, (3, 2), 'float32', dev))
    torch.linalg.det(rand($seed, (3, 3), 'float32', dev) + 4 * torch.eye(3, device=dev))
    torch.linalg.cholesky(torch.eye(3, device=dev) * 3 + 0.5)
    torch.linalg.svdvals(rand($seed, (3, 2), 'float32', dev))
    torch.linalg.matrix_power(rand($seed, (2, 2), 'float32', dev), 3)
    torch.matrix_exp(rand($seed, (2, 2), 'float32', dev))
    torch.fft.fft($r).contiguous()
    torch.fft.rfft($r, dim=$d).contiguous()
    torch.fft.irfft(torch.fft.rfft($r), n=$r.shape[-1]).contiguous()
    torch.fft.fft2(rand($seed, (3, 4), 'float32', dev)).contiguous().abs()
    torch.fft.ifft($r, norm='ortho').real.contiguous()
    torch.fft.fftshift($r)
    torch.fft.hfft(rand($seed, (4,), 'complex64', dev))
    torch.stft(rand($seed, (16,), 'float32', dev), 8, 4, window=torch.ones(8, device=dev), return_complex=True).abs()
    ($c * (0.5 + 0.3j)).abs()
    ($c + (3 + 1j)).angle()
    ($c + (3 + 1j)).log()
    $c.exp()
    $c / (1 + 2j)
    torch.polar($r.abs(), $r)
    $c.mean()
    $c @ $c.mT.conj()
    F.mse_loss($f, $w)
    F.mse_loss($f, $w, reduction='none')
    F.l1_loss($f, $w, reduction='sum')
    F.smooth_l1_loss($f, $w, beta=$a)
    F.huber_loss($f, $w, delta=$a)
    F.binary_cross_entropy($r.sigmoid(), torch.rand_like($r).sigmoid() * 0 + 0.3)
    F.binary_cross_entropy_with_logits($f, $w.sigmoid())
    F.binary_cross_entropy_with_logits($f, $w.sigmoid(), pos_weight=torch.full((1,), $a, device=dev).to($f.dtype), reduction='sum')
    F.kl_div(F.log_softmax($r, -1), F.softmax(rand($seed, $r.shape, str($r.dtype)[6:], dev), -1), reduction='batchmean')
    F.soft_margin_loss($f, torch.ones_like($f))
    F.poisson_nll_loss($f.clamp(-3, 3), torch.ones_like($f))
    F.gaussian_nll_loss($r, $r + 1, torch.ones_like($r))
    F.cosine_embedding_loss(rand($seed, (3, 4), 'float32', dev), rand(1, (3, 4), 'float32', dev), torch.tensor([1, -1, 1], device=dev))
    F.triplet_margin_loss(rand($seed, (3, 4), 'float32', dev), rand(1, (3, 4), 'float32', dev), rand(2, (3, 4), 'float32', dev))
    F.margin_ranking_loss($r, $r + 1, torch.ones_like($r))
    F.hinge_embedding_loss($r, torch.ones_like($r))
    F.multilabel_soft_margin_loss(rand($seed, (3, 4), 'float32', dev), make(1, (3, 4), 'bool', dev).float())
    F.cross_entropy(rand($seed, (3, 4), $str_dt, dev), index($seed, 4, (3,), dev))
    F.cross_entropy(rand($seed, (3, 4), 'float32', dev), index($seed, 4, (3,), dev), label_smoothing=0.1, reduction='none')
    F.cross_entropy(rand($seed, (3, 4), 'float32', dev), index($seed, 4, (3,), dev), weight=torch.tensor([1., 2., 3., 4.], device=dev), ignore_index=2)
    F.cross_entropy(rand($seed, (2, 4, 3), 'float32', dev), index($seed, 4, (2, 3), dev), reduction='sum')
    F.cross_entropy(rand($seed, (3, 4), 'float32', dev), rand(1, (3, 4), 'float32', dev).softmax(-1))
    F.nll_loss(F.log_softmax(rand($seed, (3, 4), 'float32', dev), 1), torch.tensor([0, -100, 3], device=dev))
    F.multi_margin_loss(rand($seed, (3, 4), 'float32', dev), index($seed, 4, (3,), dev))
    F.multilabel_margin_loss(rand($seed, (2, 3), 'float32', dev), torch.tensor([[0, 2, -1], [1, -1, 0]], device=dev))
    F.ctc_loss(rand($seed, (6, 2, 4), 'float32', dev).log_softmax(2), torch.tensor([[1, 2], [3, 1]], device=dev), torch.tensor([6, 5]), torch.tensor([2, 2]))
    F.layer_norm($r, $r.shape[-1:])
    F.layer_norm(rand($seed, (2, 3, 4), $str_dt, dev), (4,), rand(1, (4,), $str_dt, dev), rand(2, (4,), $str_dt, dev))
    F.rms_norm(rand($seed, (2, 3, 4), $str_dt, dev), (4,), rand(1, (4,), $str_dt, dev))
    F.group_norm(rand($seed, (2, 4, 3), $str_dt, dev), 2, rand(1, (4,), $str_dt, dev))
    F.instance_norm(rand($seed, (2, 3, 5), 'float32', dev))
    F.batch_norm(rand($seed, (4, 3, 2), 'float32', dev), None, None, training=True)
    F.batch_norm(rand($seed, (4, 3), 'float32', dev), torch.zeros(3, device=dev), torch.ones(3, device=dev), rand(1, (3,), 'float32', dev))
    F.local_response_norm(rand($seed, (2, 4, 3, 3), 'float32', dev), 2)
    F.conv1d(rand($seed, (2, 4, 7), $str_dt, dev), rand(1, (4, 2, 3), $str_dt, dev), stride=$p, padding=1, groups=2)
    F.conv2d(rand($seed, (2, 4, 6, 5), $str_dt, dev), rand(1, (2, 4, 3, 3), $str_dt, dev), rand(2, (2,), $str_dt, dev), stride=$p, padding=1)
    F.conv2d(rand($seed, (1, 4, 6, 6), 'float32', dev), rand(1, (4, 1, 3, 3), 'float32', dev), groups=4, dilation=2)
    F.conv2d(rand($seed, (1, 3, 5, 5), 'float32', dev).to(memory_format=torch.channels_last), rand(1, (2, 3, 3, 3), 'float32', dev), padding='same').contiguous()
    F.conv3d(rand($seed, (1, 2, 3, 4, 4), 'float32', dev), rand(1, (2, 2, 2, 2, 2), 'float32', dev))
    F.conv_transpose1d(rand($seed, (1, 2, 4), 'float32', dev), rand(1, (2, 3, 3), 'float32', dev), stride=2, output_padding=1)
    F.conv_transpose2d(rand($seed, (1, 2, 4, 3), 'float32', dev), rand(1, (2, 2, 3, 3), 'float32', dev), stride=$p, padding=1, groups=2)
    F.avg_pool2d(rand($seed, (1, 2, 5, 5), 'float32', dev), 3, stride=2, padding=1, count_include_pad=$flag, ceil_mode=$flag2)
    F.max_pool2d(rand($seed, (1, 2, 5, 5), 'float32', dev), 3, stride=2, padding=1, ceil_mode=$flag)
    F.max_pool3d(rand($seed, (1, 1, 4, 4, 4), 'float32', dev), 2)
    F.lp_pool2d(rand($seed, (1, 2, 4, 4), 'float32', dev).abs() + 1, 2, 2)
    F.adaptive_avg_pool2d(rand($seed, (1, 2, 5, 7), 'float32', dev), (2, $p))
    F.adaptive_max_pool2d(rand($seed, (1, 2, 5, 7), 'float32', dev), (2, $p))
    F.adaptive_avg_pool1d(rand($seed, (2, 5), 'float32', dev), 2)
    F.interpolate(rand($seed, (1, 2, 4, 5), 'float32', dev), scale_factor=2, mode='bilinear', align_corners=$flag)
    F.interpolate(rand($seed, (1, 2, 4, 5), 'float32', dev), size=(3, 7), mode='bicubic', align_corners=$flag)
    F.interpolate(rand($seed, (1, 2, 6), 'float32', dev), size=4, mode='linear')
    F.interpolate(rand($seed, (1, 2, 6, 6), 'float32', dev), size=(3, 2), mode='area')
    F.interpolate(rand($seed, (1, 2, 5, 6), 'float32', dev), scale_factor=0.6, mode='nearest-exact')
    F.interpolate(rand($seed, (1, 1, 3, 3, 3), 'float32', dev), scale_factor=2, mode='trilinear')
    F.interpolate(rand($seed, (1, 2, 8, 8), 'float32', dev), size=(3, 5), mode='bilinear', antialias=True)
    F.grid_sample(rand($seed, (1, 2, 4, 4), 'float32', dev), rand(1, (1, 3, 3, 2), 'float32', dev).tanh(), align_corners=$flag)
    F.grid_sample(rand($seed, (1, 2, 4, 4), 'float32', dev), rand(1, (1, 3, 3, 2), 'float32', dev), padding_mode='reflection', align_corners=False)
    F.affine_grid(rand($seed, (1, 2, 3), 'float32', dev), (1, 1, 3, 4), align_corners=$flag)
    F.fold(rand($seed, (1, 8, 6), 'float32', dev), (3, 4), 2)
    F.unfold(rand($seed, (1, 2, 4, 5), 'float32', dev), 3, padding=1, stride=2)
    F.pad(rand($seed, (1, 2, 4, 4), 'float32', dev), (1, 2, 0, 1), mode='reflect')
    F.pad(rand($seed, (1, 2, 4, 4), 'float32', dev), (1, 2, 0, 1), mode='replicate')
    F.pad(rand($seed, (1, 2, 4, 4), 'float32', dev), (1, 2, 0, 1), mode='circular')
    F.embedding(index($seed, 5, (2, 3), dev), rand(1, (5, 4), 'float32', dev), padding_idx=1)
    F.embedding(index($seed, 5, (2, 3), dev), rand(1, (5, 4), 'float32', dev), max_norm=1.0)
    F.embedding_bag(index($seed, 5, (2, 3), dev), rand(1, (5, 4), 'float32', dev), mode='sum')
    F.embedding_bag(index($seed, 5, (6,), dev), rand(1, (5, 4), 'float32', dev), torch.tensor([0, 2], device=dev), mode='mean')
    F.scaled_dot_product_attention(rand(1, (2, 2, 3, 4), $str_dt, dev), rand(2, (2, 2, 5, 4), $str_dt, dev), rand($seed, (2, 2, 5, 4), $str_dt, dev))
    F.scaled_dot_product_attention(rand(1, (1, 2, 4, 4), 'float32', dev), rand(2, (1, 2, 4, 4), 'float32', dev), rand($seed, (1, 2, 4, 4), 'float32', dev), is_causal=True)
    F.scaled_dot_product_attention(rand(1, (2, 3, 4), 'float32', dev), rand(2, (2, 5, 4), 'float32', dev), rand($seed, (2, 5, 4), 'float32', dev), attn_mask=make(7, (3, 5), 'bool', dev) | torch.eye(3, 5, dtype=torch.bool, device=dev))
    F.scaled_dot_product_attention(rand(1, (2, 2, 3, 4), 'float32', dev), rand(2, (2, 1, 3, 4), 'float32', dev), rand($seed, (2, 1, 3, 4), 'float32', dev), attn_mask=torch.eye(3, dtype=torch.bool, device=dev))
    F.scaled_dot_product_attention(rand(1, (2, 2, 3, 4), 'float32', dev), rand(2, (2, 2, 3, 4), 'float32', dev), rand($seed, (2, 2, 3, 4), 'float32', dev), attn_mask=rand(5, (3, 3), 'float32', dev), scale=0.3)
    F.scaled_dot_product_attention(rand(1, (1, 4, 3, 4), 'float32', dev), rand(2, (1, 2, 3, 4), 'float32', dev), rand($seed, (1, 2, 3, 4), 'float32', dev), enable_gqa=True)
    torch.func.grad(lambda a: (a.tanh() * a).sum())($r)
    torch.func.vmap(lambda a: F.softmax(a, -1))($r) if $r.dim() > 1 else $r
    torch.func.vmap(lambda a, b: a @ b)(rand($seed, (3, 2, 4), 'float32', dev), rand(1, (3, 4, 2), 'float32', dev))
    torch.func.vmap(lambda a: a.sin().sum(), in_dims=1)(rand($seed, (3, 4), 'float32', dev))
    torch.func.jacrev(torch.sin)(rand($seed, (3,), 'float32', dev))
    torch.func.jacfwd(lambda a: a ** 2)(rand($seed, (3,), 'float32', dev))
    torch.func.hessian(lambda a: (a ** 3).sum())(rand($seed, (2,), 'float32', dev))
    torch.func.jvp(torch.tanh, (rand($seed, (3,), 'float32', dev),), (rand(1, (3,), 'float32', dev),))
    torch.func.vjp(torch.exp, rand($seed, (3,), 'float32', dev))[0]
    torch.func.vmap(torch.func.grad(lambda a: (a * a.exp()).sum()))(rand($seed, (3, 2), 'float32', dev))
    torch.autograd.functional.jacobian(lambda a: a.tanh(), rand($seed, (3,), 'float32', dev))
    torch.quantile(rand($seed, (3, 5), 'float32', dev), 0.3, dim=$p % 2)
    torch.nanquantile(rand($seed, (7,), 'float32', dev), torch.tensor([0.2, 0.9], device=dev))
    $f.nanmean() if $f.numel() else $f
    torch.nn.utils.parameters_to_vector([$r, $r2])
    torch.nn.utils.rnn.pack_padded_sequence(rand($seed, (2, 4, 3), 'float32', dev), torch.tensor([4, 2]), batch_first=True).data
    torch._foreach_norm([$f, $f2])
    torch._foreach_exp([$f.clamp(-2, 2), $f2.clamp(-2, 2)])
    torch.gradient(rand($seed, (5,), 'float32', dev))[0]
    torch.cosine_similarity($r + 2, $r * 2 + 1, dim=-1)
    torch.linalg.lstsq(rand($seed, (4, 2), 'float32', dev), rand(1, (4, 1), 'float32', dev)).solution
    torch.linalg.eigvalsh(torch.eye(3, device=dev) * torch.arange(3, device=dev))
    torch.linalg.pinv(rand($seed, (3, 2), 'float32', dev))
    torch.histogram($r.cpu(), 3).hist.to(dev) * 0
    torch.special.logsumexp($f, -1)
    torch.special.zeta($f.abs() + 2, torch.full((), 1.5, device=dev))
    torch.special.multigammaln($r.abs() + 3, 2)
    torch.logit($f.sigmoid(), eps=0.1)
    $f.clamp(-3, 3).float_power(2)
    $l.float() / 3
    $l / 7
    $l.float().exp().clamp(max=60)
    $l.sin()
    $b.float().mean()
    $l.sqrt().nan_to_num() if $l.dtype != torch.uint8 else $l
    $x.float().std()
    torch.linspace($k, 3, 7, device=dev) * $a
    torch.nn.functional.gumbel_softmax(torch.tensor([[100., -100.]], device=dev))
""")

ROUNDED_JUMPS: Final = _lines("""
    $v = torch._foreach_$unary([($f.abs() + 0.5).clamp(max=3), $r.sigmoid() * 0.8 + 0.1])
    !torch._foreach_$unary([$f.clamp_(0.5, 0.9)])
    $v = torch._foreach_lerp([$f], [$w], [torch.full_like($f, 0.3)])
    $v = torch._foreach_addcmul([$f], [$w], [$w], [$a])
    $v = torch._foreach_addcdiv([$f], [$w], [$w.abs() + 1], [$a])
    $v = torch._foreach_pow([$f.abs() + 0.5], [$w.clamp(-2, 2)])
    $v = torch._foreach_pow([$f.abs() + 0.5, $r.abs() + 0.5], $a)
    $v = torch._foreach_pow(2.0, [$f.clamp(-3, 3)])
    $v = torch._foreach_norm([$f, $r], 1)
    torch.addbmm(rand(2, (3, 2), 'float32', dev), rand($seed, (2, 3, 4), 'float32', dev), rand(1, (2, 4, 2), 'float32', dev))
    torch.special.i0e($f)
    torch.special.i1($f.clamp(-3, 3))
    torch.special.modified_bessel_i0($r.clamp(-3, 3))
    torch.special.modified_bessel_i1($r.clamp(-3, 3))
    torch.special.ndtri($r.sigmoid() * 0.8 + 0.1)
    torch.special.bessel_j0($r)
    torch.special.bessel_j1($f)
    torch.special.bessel_y0($f.abs() + 0.5)
    torch.special.scaled_modified_bessel_k0($f.abs() + 0.5)
    torch.special.modified_bessel_k1($r.abs() + 0.5)
    torch.special.spherical_bessel_j0($r)
    torch.special.airy_ai($r.clamp(-5, 5))
    torch.special.chebyshev_polynomial_t($r.clamp(-1, 1), $k)
    torch.special.hermite_polynomial_he($f.clamp(-2, 2), torch.tensor(3, device=dev))
    torch.special.legendre_polynomial_p($r.sigmoid(), 4)
    torch.polygamma(2, ($f.abs() + 0.5).float())
    torch.frexp($r + 3).mantissa
    F.pdist(rand($seed, (4, 3), 'float32', dev))
    torch.segment_reduce(rand($seed, (6, 2), 'float32', dev), 'mean', lengths=torch.tensor([2, 3, 1], device=dev))
    F.interpolate(rand($seed, (1, 2, 7, 5), 'float32', dev), (4, 3), mode='bilinear', antialias=True)
    F.multilabel_margin_loss(rand($seed, (2, 4), 'float32', dev), torch.tensor([[1, 2, -1, 0], [3, -1, 0, 0]], device=dev))
    F.grid_sample(rand($seed, (1, 2, 4, 4), 'float32', dev), rand(1, (1, 3, 3, 2), 'float32', dev).clamp(-1, 1) * 0.7, align_corners=$flag)
    torch.linalg.slogdet(rand($seed, (2, 4, 4), 'float32', dev) + 5 * torch.eye(4, device=dev)).logabsdet
    torch.linalg.solve_triangular(rand($seed, (3, 3), 'float32', dev) + 4 * torch.eye(3, device=dev), rand(1, (3, 2), 'float32', dev), upper=$flag)
    torch.cholesky_solve(rand($seed, (3, 2), 'float32', dev), torch.eye(3, device=dev) * 2 + 0.1)
    torch.linalg.qr(rand($seed, (4, 3), 'float32', dev) + 2 * torch.eye(4, 3, device=dev)).R
    torch.linalg.lu_factor(rand($seed, (5, 5), 'float64', dev) + 6 * torch.eye(5, dtype=torch.float64, device=dev)).LU
    torch.matrix_exp(rand($seed, (2, 3, 3), 'float32', dev) * 0.5)
    torch.special.xlog1py($a, $f.sigmoid())
    torch.special.xlog1py($f, $a)
    torch.xlogy($f, $a)
    torch.xlogy($a, $f.abs() + 0.5)
    torch.vdot($r.flatten(), $r.flatten())
    torch._fused_rms_norm(rand($seed, (2, 4), 'float32', dev), [4], None, 1e-5)[0] if hasattr(torch, '_fused_rms_norm') else $f
    F.interpolate(rand($seed, (1, 2, 5), 'float32', dev), scale_factor=1.7, mode='nearest-exact')
    F.interpolate(rand($seed, (1, 1, 3, 4, 3), 'float32', dev), size=(2, 5, 4), mode='nearest')
    F.pad(rand($seed, (1, 1, 3, 3, 3), 'float32', dev), (1, 1, 1, 0, 0, 1), mode='$padded')
    F.adaptive_max_pool3d(rand($seed, (1, 1, 4, 4, 4), 'float32', dev), 2)
    F.adaptive_avg_pool3d(rand($seed, (1, 1, 4, 4, 4), 'float32', dev), (2, 1, 3))
    F.avg_pool3d(rand($seed, (1, 1, 4, 4, 4), 'float32', dev), 2)
    torch.as_strided_scatter($r.flatten(), $r.sum()[None] * $a, (1,), (1,)) if $r.numel() else $r
    torch.nansum(torch.cat([$f.flatten(), torch.full((1,), nan, device=dev).to($f.dtype)]))
    torch.nanmedian(torch.cat([$u.flatten().float(), torch.full((1,), nan, device=dev)]), 0)
    torch.searchsorted(torch.arange(5, device=dev).float(), $a)
    torch.bucketize($p, torch.arange(5, device=dev))
    $f.norm(2) * $a
    torch.norm($f, dtype=torch.float64)
    torch.linalg.vector_norm($r, dim=$d, dtype=torch.float64)
    torch.where($r > 0, $r.exp().clamp(max=9), $r * 0.3)
    $f.relu() * $a
    F.dropout($f, 0.0)
    F.dropout($f, 0.5, training=False)
    F.rrelu($f, training=False)
    $u.softmax(-1).argmax(-1)
    ($x.float() > $a).float() * 0.3
    !$f.exp_().clamp_(max=40)
    !$f.mul_($a)
    !$f.div_(3)
    !$f.tanh_()
    !$f.sigmoid_()
    !$f.sin_()
    !$f.add_($w, alpha=$a)
    !$f.sub_($w)
    !$f.addcdiv_($w, $w.abs() + 1, value=$a)
    !$f.lerp_($w, $a)
    !$f.sqrt_().nan_to_num_()
    !$f.clamp_(min=0.1).log_()
    !$f[1:] = $f[:-1].sin()
    !$f[..., 0] = $a
    !$f.copy_($w)
    !F.elu($f, inplace=True)
    !F.silu($f, inplace=True)
    !$f.t().mul_($a)
    !$f.unsqueeze(0).sigmoid_()
    !$f.pow_(2).mul_($a).clamp_(-9, 9)
    !$f.normal_().mul_(0)
    !$f.uniform_().lt_(2)
    !torch._foreach_mul_([$f, $f.clone()], $a)
    !torch._foreach_addcdiv_([$f], [$w], [$w.abs() + 1], value=$a)
    !torch._foreach_lerp_([$f], [$w], $a)
    !torch._foreach_sqrt_([$f.abs_()])
    !torch.exp($f.clamp(-2, 2), out=torch.empty(0, device=dev, dtype=$f.dtype))
    !torch.mean($f, 0, out=$out)
    !torch.addcmul($f, $f, $f, out=torch.empty(0, device=dev, dtype=torch.float64))
    !torch.mm(rand(1, (2, 3), 'float32', dev), rand(2, (3, 2), 'float32', dev), out=torch.empty(2, 2, device=dev))
    !torch.nn.init.constant_($f, $a)
    !torch.nn.utils.clip_grad_norm_([$r], 1.0)
""")


def _gradients(templates: tuple[str, ...]) -> tuple[str, ...]:
    """The same operations with a backward pass to their first floating argument."""
    found = []
    for template in templates:
        leaf = re.search(r"rand\(\$seed, \([^()]*\), [^()]*dev\)", template)
        if leaf is not None:
            made, text = leaf.group(), template.replace(leaf.group(), "$new", 1)
        elif re.match(r".*\$[fr]\b", template):
            made, text = "$r.detach().clone()", re.sub(r"\$[fr]\b", "$new", template)
        else:
            continue
        found.append(
            f"!$new = {made}.requires_grad_()|t0 = {text}|t0 = t0[0] if isinstance(t0, tuple) else t0"
            "|(t0.abs() if t0.is_complex() else t0).pow(2).sum().backward()"
        )
    return tuple(found)


GRADIENTS: Final = _gradients(ROUNDED)

READS: Final = _lines("""
    $v = $x.tolist()
    $v = $x.sum().clamp(-8, 8).item()
    $v = $x.numel()
    $v = bool($x.any())
    $v = bool(($x == $x2).all())
    $v = int($x.flatten()[0])
    $v = float($x.float().sum().clamp(-8, 8))
    $v = complex($c.flatten()[0])
    $v = $x.shape
    $v = len($x)
    $v = [t.sum().item() for t in $x]
    $v = str($x.dtype), $x.dim(), $x.is_contiguous(), $x.size(-1)
    $v = [s for n, s in zip($x.shape, $x.stride()) if n > 1] if $x.is_contiguous() and $x.numel() else 0
    $v = $x.cpu().numpy().tolist()
    $v = repr($x.cpu().flatten()[:3])
    $v = f"{$l.flatten()[0]:d}"
    $v = max($x.flatten())
    $v = $x.flatten().tolist().index(1)
    $v = 1 in $x
    $v = torch.is_nonzero($x)
    $v = torch.nan_to_num($x).unique().tolist()
    $v = $x.argmax().item()
    $v = $x.is_complex(), $x.element_size(), $x.requires_grad, $x.is_leaf
    $v = range($l.flatten()[0])[:3]
    $v = __import__('copy').deepcopy($x)
    $v = __import__('pickle').loads(__import__('pickle').dumps($x.cpu())).tolist()
    $v = torch.equal($x, $z)
    $v = (lambda a: (a._version, a.add_(0)._version))(torch.clone($x))
""")

CONTROL: Final = _lines("""
    !if $x.sum().item() if not $x.is_complex() else 0:|    $new = $x * 2|else:|    $new = $x - 1
    !$new = $x.clone()|for _ in range(5):|    if not $new.numel() or $new.is_complex() or not $new.max().item() > 0:|        break|    $new = $new - 1
    !$new = $x.clone()|for _ in range(int($l.abs().sum().item()) % 4):|    $new = ($new + $y).clamp(-8, 8)
    !$new = $x.clone()|for _ in range(4):|    $new = $new * 2 - $x|    $new.clamp_(-8, 8)
    !if ($x == 0).any():|    $x.zero_()|else:|    $x.add_(1)
    !for t in $x:|    t.add_(1)
    !$new = [t * 2 for t in $x.unbind(0)][-1]
    !$new = torch.zeros((), device=dev)|for i, t in enumerate($x.flatten()[:3].float()):|    $new = $new + t * i|    if $new > 4:|        break
    !$new = $x|if $b.all():|    $new = torch.stack([$x, $x])
    !with torch.no_grad():|    $new = $x + 1
    !with torch.inference_mode():|    v0 = ($x + 1).tolist()
    !$v = []|for r in $x.reshape(-1)[:4]:|    $v.append(r.item())
    !def f(a, n):|    return a if n == 0 else f(a * 2 - 1, n - 1)|$new = f($x, $p).clamp(-8, 8)
    !$new = sum([$x, $x, $x])
    !try:|    $new = $x.reshape(7, 11, 13)|except RuntimeError:|    $new = $x.flip(0)
    !$new = $x.sum().long().item() if $x.is_floating_point() else 2|$new = torch.full((2,), float($new), device=dev)
    !$new = torch.stack([torch.tensor(float(i), device=dev) for i in range($p)])
    !$new = torch.empty(0, device=dev)|for i in range($p):|    $new = torch.cat([$new, torch.full((1,), float(i) + 0.5, device=dev)])
    !$new = {'a': $x, 'b': [$z]}|$new = $new['a'] + 1
    !$new = torch.zeros(4, device=dev)|for i in range(4):|    $new[i] = i * 2
    !$new = torch.zeros(3, 3, device=dev)|for i in range(3):|    for j in range(3):|        $new[i, j] = i - j
""")
