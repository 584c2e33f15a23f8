"""Complex numbers and Fourier transforms, with gradients."""

import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(4, 16).to(device).requires_grad_()
f = torch.fft.rfft(x)
back = torch.fft.irfft(f * torch.exp(1j * torch.linspace(0, 1, 9, device=device)), n=16)
back.square().sum().backward()
z = torch.view_as_complex(torch.randn(3, 3, 2).to(device))
results = {
    "rfft": f.detach().cpu(),
    "back": back.detach().cpu(),
    "grad": x.grad.cpu(),
    "fft2": torch.fft.fft2(z).cpu(),
    "shift": torch.fft.fftshift(torch.fft.fftfreq(8, device=device)).cpu(),
    "product": (z @ z.conj().T).cpu(),
    "polar": torch.polar(z.abs(), z.angle()).cpu(),
    "stft": torch.stft(x.detach(), 8, 4, window=torch.hann_window(8, device=device), return_complex=True).cpu(),
    "parts": torch.stack([z.real, z.imag]).cpu(),
}
torch.save(results, sys.argv[1])
