"""Templates of operations whose results do not round: views, values, numbers, changes in place. ``_JUMPS``: they may look at exact values only,
because they are not continuous."""

from __future__ import annotations

from typing import Final

from tests.programs.templates import lines

__all__ = ["VIEWS", "EXACT", "EXACT_JUMPS", "CONSTANTS", "IN_PLACE", "IN_PLACE_JUMPS"]

VIEWS: Final = lines("""
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

EXACT: Final = lines("""
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

EXACT_JUMPS: Final = lines("""
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

CONSTANTS: Final = lines("""
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

IN_PLACE: Final = lines("""
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
    !$x.fill_(torch.full((), $n, device=dev).abs())
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

IN_PLACE_JUMPS: Final = lines("""
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
