"""What a line of a program may be. ``$`` names a field (script.Fields): ``$x`` any tensor, ``$y`` what broadcasts with it, ``$d`` one of
its dimensions, ``$n`` a number. An expression becomes an assignment; ``!`` marks statements; ``|`` without a space before it ends a line.

Tables stand by two questions: does the result round (``exact``, ``rounded``), and is the operation continuous (may it look at values that are
rounded). Here: values that are read, and control by values. ``blocks`` has longer statements.
"""

from __future__ import annotations

from typing import Final

__all__ = ["READS", "CONTROL", "lines"]


def lines(text: str) -> tuple[str, ...]:
    """The templates of a table: one a line, without comments."""
    return tuple(line.strip() for line in text.strip().split("\n") if line.strip() and not line.strip().startswith("#"))


READS: Final = lines("""
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

CONTROL: Final = lines("""
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
