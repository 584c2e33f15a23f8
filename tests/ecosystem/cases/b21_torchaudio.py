"""torchaudio's transforms, then its own operators."""

# requires: torchaudio
# tolerance: 2e-3
import sys

import torch
from torchaudio import functional as F
from torchaudio import transforms as T

device = "cuda" if torch.cuda.is_available() else "cpu"
wave = (torch.sin(torch.arange(4000) * 0.05) + 0.3 * torch.sin(torch.arange(4000) * 0.31)).repeat(2, 1).to(device)
results = {
    "spectrogram": T.Spectrogram(n_fft=128).to(device)(wave).cpu(),
    "mel": T.MelSpectrogram(8000, n_fft=128, n_mels=16).to(device)(wave).cpu(),
    "mfcc": T.MFCC(8000, 8, melkwargs=dict(n_fft=128, n_mels=16)).to(device)(wave).cpu(),
    "resample": T.Resample(8000, 5000).to(device)(wave).cpu(),
    "db": T.AmplitudeToDB().to(device)(wave.abs()).cpu(),
    "deltas": F.compute_deltas(wave[:, None, :200]).cpu(),
}
emission = torch.linspace(-1, 1, 60).view(1, 10, 6).to(device).log_softmax(-1)
aligned, scores = F.forced_align(emission, torch.tensor([[1, 2, 3]], dtype=torch.int32).to(device))
results["align"] = [aligned.cpu(), scores.cpu()]
torch.save(results, sys.argv[1])
