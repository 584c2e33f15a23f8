"""Longer statements: autograd, modules, optimisers, random operations compared by their properties."""

from __future__ import annotations

from typing import Final

from tests.programs.templates import lines

__all__ = ["AUTOGRAD", "MODULES", "TRAINING", "RANDOM"]

AUTOGRAD: Final = lines("""
    !$new = $r.detach().clone().requires_grad_()|($new.tanh() * $w).sum().backward()
    !$new = $r.detach().clone().requires_grad_()|($new * $new).sum().backward()|($new.sin()).sum().backward()
    !$new = $r.detach().clone().requires_grad_()|t0 = ($new.sigmoid() @ $new.sigmoid().mT).sum()|t0.backward(retain_graph=True)|t0.backward()
    !$new = $r.detach().clone().requires_grad_()|$new2 = torch.autograd.grad(($new ** 3).sum(), $new, create_graph=True)[0]|$new2.sum().backward()
    !$new = $r.detach().clone().requires_grad_()|$new2 = torch.autograd.grad([($new * 2).sum(), ($new + 1).prod()], [$new])[0]
    !$new = $r.detach().clone().requires_grad_()|t0 = $new * 1|t0.retain_grad()|t0.register_hook(lambda g: g * 2)|t0.exp().clamp(max=30).mean().backward()|$new2 = t0.grad
    !$new = $r.detach().clone().requires_grad_()|$new.register_hook(lambda g: g.clamp(-1, 1))|F.mse_loss($new * 3, $w).backward()
    !$new = $r.detach().clone().requires_grad_()|($new.detach() * $new).sum().backward()|with torch.no_grad():|    $new.sub_($new.grad, alpha=0.1)
    !$new = $r.detach().clone().requires_grad_()|t0 = $new.clone()|t0[..., 0] = 1|t0.mul_(2)|t0.sum().backward()
    !$new = $r.detach().clone().requires_grad_()|t0 = torch.cat([$new, $new * 2], -1) if $new.dim() else $new * 2|(t0 * t0).sum().backward()
    !$new = $r.detach().clone().requires_grad_()|from torch.utils.checkpoint import checkpoint|checkpoint(lambda a: a.tanh().exp() * a, $new, use_reentrant=False).sum().backward()
    !$new = $r.detach().clone().requires_grad_()|from torch.utils.checkpoint import checkpoint|checkpoint(lambda a: F.gelu(a).cumsum(-1) if a.dim() else a, $new, use_reentrant=True).sum().backward()
    !$new = $r.detach().clone().requires_grad_()|$new2 = torch.autograd.grad(F.softmax($new, -1).pow(2).sum(), $new)[0]
    !$new = $r.detach().clone().requires_grad_()|$new2 = torch.autograd.grad($new.mean(), $new)[0]|del $new
    !$new = make($seed, (3, 4), 'float32', dev).requires_grad_()|($new[[0, 2, 0]] * $new[:, 1:2]).sum().backward()
    !$new = make($seed, (3, 4), 'float32', dev).requires_grad_()|$new.gather(1, index($seed, 4, (3, 2), dev)).sum().backward()
    !$new = make($seed, (3, 4), 'float32', dev).requires_grad_()|torch.where($new > 0, $new * 2, -$new).sum().backward()
    !$new = make($seed, (3, 4), 'float32', dev).requires_grad_()|($new.max(1)[0].sum() + $new.amin(0).sum()).backward()
    !$new = make($seed, (2, 3), 'float32', dev).requires_grad_()|$new.expand(4, 2, 3).permute(2, 0, 1).reshape(3, -1).cumsum(1).sum().backward()
    !$new = make($seed, (4, 4), 'float32', dev).requires_grad_()|($new.diagonal().sum() + $new.tril().sum() + $new.unfold(0, 2, 1).sum()).backward()
    !$new = distinct($seed, (3, 4), 'float32', dev).requires_grad_()|($new.sort(1)[0] * make(1, (3, 4), 'float32', dev)).sum().backward()
    !$new = distinct($seed, (3, 4), 'float32', dev).requires_grad_()|($new.topk(2)[0].prod() + $new.median() + $new.max()).backward()
    !$new = distinct($seed, (2, 6), 'float32', dev).requires_grad_()|(F.max_pool1d($new[None], 2) * 3).sum().backward()
    !$new = rand($seed, (2, 3), 'float32', dev).requires_grad_()|$new2 = rand(1, (3, 2), 'float32', dev).requires_grad_()|($new @ $new2).logsumexp(-1).sum().backward()
    !$new = rand($seed, (2, 3, 4), 'float32', dev).requires_grad_()|F.layer_norm($new, (4,)).pow(3).sum().backward()
    !$new = rand($seed, (2, 4, 5), 'float32', dev).requires_grad_()|F.group_norm($new, 2).tanh().sum().backward()
    !$new = rand($seed, (2, 2, 5, 5), 'float32', dev).requires_grad_()|$new2 = rand(1, (3, 2, 3, 3), 'float32', dev).requires_grad_()|F.conv2d($new, $new2, stride=2, padding=1).relu().sum().backward()
    !$new = rand($seed, (1, 2, 4, 4), 'float32', dev).requires_grad_()|F.interpolate($new, scale_factor=2, mode='bilinear').pow(2).sum().backward()
    !$new = rand($seed, (1, 2, 4, 4), 'float32', dev).requires_grad_()|(F.avg_pool2d($new, 2).sin() + F.adaptive_avg_pool2d($new, 2)).sum().backward()
    !$new = rand($seed, (1, 2, 4, 4), 'float32', dev).requires_grad_()|F.pad($new, (1, 1, 1, 1), mode='reflect').mul(rand(1, (6, 6), 'float32', dev)).sum().backward()
    !$new = rand($seed, (3, 5), 'float32', dev).requires_grad_()|F.cross_entropy($new, index($seed, 5, (3,), dev), label_smoothing=0.2).backward()
    !$new = rand($seed, (2, 2, 4, 4), 'float32', dev).requires_grad_()|F.scaled_dot_product_attention($new, $new, $new, is_causal=$flag).sin().sum().backward()
    !$new = rand($seed, (2, 4, 4), 'float32', dev).requires_grad_()|F.scaled_dot_product_attention($new, $new, $new, attn_mask=torch.tril(torch.ones(4, 4, dtype=torch.bool, device=dev))).sin().sum().backward()
    !$new = rand($seed, (5, 3), 'float32', dev).requires_grad_()|F.embedding(index($seed, 5, (2, 4), dev), $new, padding_idx=0).tanh().sum().backward()
    !$new = rand($seed, (4,), 'complex64', dev).requires_grad_()|($new * $new.conj()).real.sum().backward()
    !$new = rand($seed, (8,), 'float32', dev).requires_grad_()|torch.fft.rfft($new).abs().pow(2).sum().backward()
    !$new = rand($seed, (3,), 'float64', dev).requires_grad_()|$new2 = torch.autograd.grad($new.exp().sum(), $new, create_graph=True)[0]|$new3 = torch.autograd.grad(($new2 * $new).sum(), $new)[0]
    !class Square(torch.autograd.Function):|    @staticmethod|    def forward(ctx, a):|        ctx.save_for_backward(a)|        return a * a|    @staticmethod|    def backward(ctx, g):|        return g * 2 * ctx.saved_tensors[0]|$new = $r.detach().clone().requires_grad_()|Square.apply($new).sum().backward()
    !$new = $r.detach().clone().requires_grad_()|for _ in range(3):|    ($new * $w).sum().backward()|$new2 = $new.grad.clone()|$new.grad = None
    !$new = $r.detach().clone().requires_grad_()|$new2 = ($new * 2).requires_grad_()|$new2.retain_grad()|$new2.pow(2).sum().backward(inputs=[$new])
    !$new = $r.detach().clone().requires_grad_()|$new2 = $new.abs().add(0.5).log().var() if $new.numel() > 1 else $new.sum()|$new2.backward()
    !$new = $r.detach().clone().requires_grad_()|with torch.enable_grad():|    t0 = torch.stack([$new, $new.flip(0) if $new.dim() else $new])|t0.norm().backward()
    !$new = $r.detach().clone().requires_grad_()|t0 = $new.half() * 2|t0.float().sum().backward()
    !$new = $r.detach().clone().requires_grad_()|t0 = torch.zeros_like($new)|t0.copy_($new)|t0.add_($new).sigmoid().sum().backward()
    !$new = $r.detach().clone().requires_grad_()|t0 = $new.view(-1)[::2]|(t0.masked_fill(torch.zeros_like(t0).bool(), 1.0)).sum().backward()
    !$new = make($seed, (3, 4), 'float32', dev).requires_grad_()|t0 = torch.zeros(3, 4, device=dev).index_add(0, torch.tensor([2, 0, 2], device=dev), $new)|(t0 * t0).sum().backward()
    !$new = make($seed, (3, 4), 'float32', dev).requires_grad_()|t0 = torch.zeros(5, 4, device=dev).scatter_add(0, index($seed, 5, (3, 4), dev), $new)|(t0 * t0).sum().backward()
    !$new = $r.detach().clone().requires_grad_()|$new2 = torch.func.grad(lambda a: (a.sin() * a).sum())($new)
    !$new = $r.detach().clone().requires_grad_()|with torch.autograd.graph.save_on_cpu():|    t0 = $new.exp().clamp(max=9) * $new|t0.sum().backward()
    !import torch.autograd.forward_ad as fwAD|with fwAD.dual_level():|    t0 = fwAD.make_dual($r.detach().clone(), torch.ones_like($r))|    $new = fwAD.unpack_dual(t0.tanh() * t0).tangent
""")

MODULES: Final = lines("""
    !$mod = module($seed, lambda: nn.Linear(3, 4), dev)|$new = $mod(rand($seed, (2, 3), 'float32', dev))
    !$mod = module($seed, lambda: nn.Sequential(nn.Linear(3, 4), nn.$act(), nn.Linear(4, 2)), dev)|$new = $mod(rand($seed, (5, 3), 'float32', dev))|$new.sum().backward()
    !$mod = module($seed, lambda: nn.Conv1d(2, 3, 3, padding=1), dev)|$new = $mod(rand($seed, (2, 2, 5), 'float32', dev))|$new.pow(2).mean().backward()
    !$mod = module($seed, lambda: nn.Conv2d(2, 4, 3, stride=$p, bias=$flag), dev)|$new = $mod(rand($seed, (1, 2, 6, 6), 'float32', dev))|$new.tanh().sum().backward()
    !$mod = module($seed, lambda: nn.ConvTranspose2d(2, 3, 2, stride=2), dev)|$new = $mod(rand($seed, (1, 2, 3, 3), 'float32', dev))|$new.sum().backward()
    !$mod = module($seed, lambda: nn.BatchNorm1d(3, momentum=0.3), dev).train($flag)|$new = $mod(rand($seed, (4, 3), 'float32', dev) * 2 + 1)|$new.pow(3).sum().backward()
    !$mod = module($seed, lambda: nn.BatchNorm2d(3, affine=$flag), dev)|$new = $mod(rand($seed, (2, 3, 4, 4), 'float32', dev))|$mod.eval()|$new2 = $mod(rand(1, (2, 3, 4, 4), 'float32', dev))
    !$mod = module($seed, lambda: nn.LayerNorm(4), dev)|$new = $mod(rand($seed, (2, 3, 4), 'float32', dev))|($new * $new.detach().sin()).sum().backward()
    !$mod = module($seed, lambda: nn.GroupNorm(2, 4), dev)|$new = $mod(rand($seed, (2, 4, 3), 'float32', dev))|$new.tanh().sum().backward()
    !$mod = module($seed, lambda: nn.InstanceNorm2d(3, affine=True), dev)|$new = $mod(rand($seed, (2, 3, 4, 4), 'float32', dev))|$new.abs().sum().backward()
    !$mod = module($seed, lambda: nn.RMSNorm(4), dev)|$new = $mod(rand($seed, (2, 3, 4), 'float32', dev))|$new.tanh().sum().backward()
    !$mod = module($seed, lambda: nn.Embedding(6, 4, padding_idx=$p), dev)|$new = $mod(index($seed, 6, (2, 3), dev))|$new.pow(2).sum().backward()
    !$mod = module($seed, lambda: nn.Embedding(6, 4, max_norm=1.0), dev)|$new = $mod(index($seed, 6, (2, 3), dev))
    !$mod = module($seed, lambda: nn.EmbeddingBag(6, 4, mode='$bag'), dev)|$new = $mod(index($seed, 6, (2, 3), dev))|$new.tanh().sum().backward()
    !$mod = module($seed, lambda: nn.LSTM(3, 4, $p, batch_first=$flag, bidirectional=$flag2), dev)|$new, v0 = $mod(rand($seed, (2, 5, 3), 'float32', dev))|$new.sum().backward()
    !$mod = module($seed, lambda: nn.GRU(3, 4, $p, batch_first=$flag), dev)|$new, $new2 = $mod(rand($seed, (2, 5, 3), 'float32', dev))|$new.sum().backward()
    !$mod = module($seed, lambda: nn.RNN(3, 4, nonlinearity='$rnn'), dev)|$new, $new2 = $mod(rand($seed, (2, 5, 3), 'float32', dev))|$new2.sum().backward()
    !$mod = module($seed, lambda: nn.LSTMCell(3, 4), dev)|$new, $new2 = $mod(rand($seed, (2, 3), 'float32', dev))|($new + $new2).sum().backward()
    !$mod = module($seed, lambda: nn.GRUCell(3, 4), dev)|$new = $mod(rand($seed, (2, 3), 'float32', dev))|for _ in range(2):|    $new = $mod(rand(1, (2, 3), 'float32', dev), $new)
    !$mod = module($seed, lambda: nn.MultiheadAttention(4, 2, batch_first=True), dev)|t0 = rand($seed, (2, 3, 4), 'float32', dev)|$new, $new2 = $mod(t0, t0, t0)|$new.sum().backward()
    !$mod = module($seed, lambda: nn.MultiheadAttention(4, 2, batch_first=True, dropout=0.0), dev)|t0 = rand($seed, (2, 3, 4), 'float32', dev)|$new = $mod(t0, t0, t0, key_padding_mask=torch.tensor([[False, False, True], [False, True, True]], device=dev), need_weights=False)[0]|$new.sin().sum().backward()
    !$mod = module($seed, lambda: nn.MultiheadAttention(4, 2), dev)|t0 = rand($seed, (3, 2, 4), 'float32', dev)|$new = $mod(t0, t0, t0, attn_mask=torch.triu(torch.ones(3, 3, dtype=torch.bool, device=dev), 1), is_causal=False)[0]
    !$mod = module($seed, lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, norm_first=$flag), dev).train($flag2)|$new = $mod(rand($seed, (2, 3, 4), 'float32', dev), src_key_padding_mask=torch.tensor([[False, False, True], [False, False, False]], device=dev))|$new.pow(2).sum().backward()
    !$mod = module($seed, lambda: nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0), dev)|$new = $mod(rand($seed, (3, 2, 4), 'float32', dev), rand(1, (5, 2, 4), 'float32', dev), tgt_mask=nn.Transformer.generate_square_subsequent_mask(3).to(dev))|$new.sin().sum().backward()
    !$mod = module($seed, lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)), dev)|$new = $mod(rand($seed, (2, 1, 6, 6), 'float32', dev))|F.cross_entropy($new, index($seed, 3, (2,), dev)).backward()
    !$mod = module($seed, lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.LayerNorm(4)), dev).eval()|$new = $mod(rand($seed, (2, 4), 'float32', dev))
    !$mod = module($seed, lambda: nn.Conv2d(3, 4, 3, padding=1), dev).to(memory_format=torch.channels_last)|$new = $mod(rand($seed, (2, 3, 4, 4), 'float32', dev).to(memory_format=torch.channels_last)).contiguous()|$new.sum().backward()
    !$mod = module($seed, lambda: nn.Linear(3, 4), dev).to($half)|$new = $mod(rand($seed, (2, 3), 'float32', dev).to($half))|$new.float().sum().backward()
    !$mod = module($seed, lambda: nn.Linear(3, 4), dev).double()|$new = $mod(rand($seed, (2, 3), 'float64', dev))
    !$mod = module($seed, lambda: nn.Linear(3, 4), dev)|with torch.autocast(dev, dtype=torch.bfloat16):|    $new = $mod(rand($seed, (2, 3), 'float32', dev))|$new.float().sum().backward()
    !$mod = module($seed, lambda: nn.PReLU(3), dev)|$new = $mod(rand($seed, (2, 3), 'float32', dev))|$new.sum().backward()
    !$mod = module($seed, lambda: nn.Bilinear(2, 3, 4), dev)|$new = $mod(rand($seed, (2, 2), 'float32', dev), rand(1, (2, 3), 'float32', dev))|$new.sum().backward()
    !$mod = module($seed, lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)), dev)|$new = $mod(rand($seed, (2, 3), 'float32', dev))|$new.sum().backward()
    !$mod = module($seed, lambda: nn.Linear(3, 4), dev)|$mod.requires_grad_(False)|$new = rand($seed, (2, 3), 'float32', dev).requires_grad_()|$mod($new).tanh().sum().backward()
    !$mod = module($seed, lambda: nn.Linear(3, 3), dev)|$new = torch.func.functional_call($mod, {'weight': torch.eye(3, device=dev), 'bias': torch.zeros(3, device=dev)}, rand($seed, (2, 3), 'float32', dev))
    !$mod = module($seed, lambda: nn.Linear(3, 3), dev)|nn.init.zeros_($mod.bias)|nn.init.constant_($mod.weight, 0.5)|$new = $mod(rand($seed, (2, 3), 'float32', dev))
    !$mod = module($seed, lambda: nn.Linear(3, 3), dev)|v0 = {k: t.cpu() for k, t in $mod.state_dict().items()}|$mod.load_state_dict({k: t * 2 for k, t in v0.items()})|del v0
    !$mod = module($seed, lambda: nn.Sequential(nn.Conv1d(2, 4, 3, groups=2), nn.GELU(), nn.AdaptiveAvgPool1d(2), nn.Flatten()), dev)|$new = $mod(rand($seed, (2, 2, 7), 'float32', dev))|$new.pow(2).sum().backward()
    !$mod = module($seed, lambda: nn.$loss(), dev)|$new = $mod(rand($seed, (2, 3), 'float32', dev).sigmoid(), rand(1, (2, 3), 'float32', dev).sigmoid())
    !$mod = module($seed, lambda: nn.Softmax2d(), dev)|$new = $mod(rand($seed, (2, 3, 4, 4), 'float32', dev))
    !$mod = module($seed, lambda: nn.Upsample(scale_factor=2, mode='$up'), dev)|$new = $mod(rand($seed, (1, 2, 3, 3), 'float32', dev))
""")

_STEP = "for i in range($p):|    $opt.zero_grad(set_to_none=$flag)|    t0 = F.mse_loss($mod(rand($seed, (4, 3), 'float32', dev)), rand(1, (4, 2), 'float32', dev))|    t0.backward()"
_MODEL = "$mod = module($seed, lambda: nn.Sequential(nn.Linear(3, 4), nn.$act(), nn.Linear(4, 2)), dev)|"

TRAINING: Final = tuple(
    f"!{_MODEL}$opt = torch.optim.{optimizer}|{_STEP}|{step}"
    for optimizer, step in (
        ("SGD($mod.parameters(), lr=0.1)", "    $opt.step()"),
        ("SGD($mod.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)", "    $opt.step()"),
        ("SGD($mod.parameters(), lr=0.1, momentum=0.9, dampening=0.1, foreach=$flag3)", "    $opt.step()"),
        ("SGD($mod.parameters(), lr=0.1, momentum=0.5, fused=True)", "    $opt.step()"),
        ("Adam($mod.parameters(), lr=0.01)", "    $opt.step()"),
        ("Adam($mod.parameters(), lr=0.01, eps=0.1, amsgrad=True, foreach=$flag3)", "    $opt.step()"),
        ("Adam($mod.parameters(), lr=0.01, eps=0.1, fused=True)", "    $opt.step()"),
        ("AdamW($mod.parameters(), lr=0.01, eps=0.1, weight_decay=0.1, foreach=$flag3)", "    $opt.step()"),
        ("AdamW($mod.parameters(), lr=0.01, eps=0.1, fused=True)", "    $opt.step()"),
        ("AdamW($mod.parameters(), lr=torch.tensor(0.01), eps=0.1, foreach=False)", "    $opt.step()"),
        ("RMSprop($mod.parameters(), lr=0.01, eps=0.1, momentum=0.5, centered=$flag3)", "    $opt.step()"),
        ("Adagrad($mod.parameters(), lr=0.05, eps=0.1)", "    $opt.step()"),
        ("Adadelta($mod.parameters(), lr=0.5, eps=0.01)", "    $opt.step()"),
        ("Adamax($mod.parameters(), lr=0.01, eps=0.1)", "    $opt.step()"),
        ("NAdam($mod.parameters(), lr=0.01, eps=0.1)", "    $opt.step()"),
        ("RAdam($mod.parameters(), lr=0.01, eps=0.1)", "    $opt.step()"),
        ("ASGD($mod.parameters(), lr=0.05)", "    $opt.step()"),
        ("SGD($mod.parameters(), lr=0.1)", "    torch.nn.utils.clip_grad_norm_($mod.parameters(), 0.5)|    $opt.step()"),
        ("Adam($mod.parameters(), lr=0.01, eps=0.1)", "    torch.nn.utils.clip_grad_value_($mod.parameters(), 0.1)|    $opt.step()"),
        ("SGD([{'params': $mod[0].parameters(), 'lr': 0.2}, {'params': $mod[2].parameters()}], lr=0.1)", "    $opt.step()"),
        ("SGD($mod.parameters(), lr=0.1)", "    $opt.step()|    if t0.item() < 0.1:|        break"),
        (
            "SGD($mod.parameters(), lr=0.4)|v0 = torch.optim.lr_scheduler.StepLR($opt, 1, 0.5)",
            "    $opt.step()|    v0.step()|v0 = $opt.param_groups[0]['lr']",
        ),
        ("LBFGS($mod.parameters(), lr=0.1, max_iter=2)", "    $opt.step(lambda: t0.detach())"),
    )
)

RANDOM: Final = lines("""
    !r0 = torch.rand($shape, device=dev)|$new = ((r0 >= 0) & (r0 < 1)).all()|del r0
    !r0 = torch.randn($shape, dtype=$fdt, device=dev)|$new = torch.isfinite(r0).all(), r0.dtype|del r0
    !r0 = torch.randint(-3, 4, $shape, device=dev)|$new = ((r0 >= -3) & (r0 < 4)).all()|del r0
    !$new = torch.randperm(7, device=dev).sort()[0]
    !r0 = F.dropout($f, 0.5)|$new = ((r0 == 0) | ((r0 - $f * 2).abs() < 0.1 + 0.1 * $f.abs())).all()|del r0
    !r0 = torch.bernoulli(torch.full((4,), 0.5, device=dev))|$new = ((r0 == 0) | (r0 == 1)).all()|del r0
    !$new = torch.bernoulli(torch.tensor([0.0, 1.0, 1.0], device=dev))
    !$new = torch.multinomial(torch.tensor([0.0, 0.2, 0.8, 0.0], device=dev), 2).sort()[0]
    !$new = torch.multinomial(torch.tensor([[0.0, 1.0], [1.0, 0.0]], device=dev), 3, replacement=True)
    !r0 = torch.empty(50, device=dev).uniform_(2, 3)|$new = ((r0 >= 2) & (r0 <= 3)).all()|del r0
    !r0 = torch.empty(50, device=dev).exponential_()|$new = (r0 >= 0).all()|del r0
    !r0 = torch.normal(torch.zeros(3, device=dev), torch.full((3,), 0.0, device=dev))|$new = r0 + 1
    !r0 = rand($seed, (4, 8), 'float32', dev).requires_grad_()|from torch.utils.checkpoint import checkpoint|r1 = checkpoint(lambda a: F.dropout(a, 0.5), r0, use_reentrant=$flag)|r1.sum().backward()|$new = (r0.grad.eq(0) == r1.eq(0)).all()|del r0, r1
    !r0 = nn.Sequential(nn.Dropout(0.5), nn.Dropout1d(0.5))|r1 = rand($seed, (2, 3, 8), 'float32', dev).requires_grad_()|r2 = r0(r1)|r2.sum().backward()|$new = (r1.grad.eq(0) == r2.eq(0)).all()|del r0, r1, r2
    !torch.manual_seed(5)|r0 = torch.rand(4, device=dev)|torch.manual_seed(5)|$new = (r0 == torch.rand(4, device=dev)).all()|del r0
    !r0 = torch.rand_like($f)|$new = r0.shape, r0.dtype, ((r0 >= 0) & (r0 <= 1)).all()|del r0
    !$new = F.dropout($f, 1.0)
    !$new = F.alpha_dropout($f, 0.0)
    !$new = torch.nn.functional.dropout2d(rand($seed, (2, 3, 4, 4), 'float32', dev), 0.0)
""")
