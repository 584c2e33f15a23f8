"""A notebook: an error in one cell leaves the session usable in the next."""

# requires: nbconvert, ipykernel
# cpu: no
import json
import subprocess
import sys

import torch

cells = [
    "import torch\nx = torch.ones(3, device='cuda')\nprint(x.sum().item())",
    "x @ torch.ones(5, device='cuda')",
    "print('then', (x * 2).sum().item())",
]
notebook = {
    "cells": [
        {"cell_type": "code", "source": c, "metadata": {}, "outputs": [], "execution_count": None, "id": f"c{i}"}
        for i, c in enumerate(cells)
    ],
    "metadata": {"kernelspec": {"name": "python3", "display_name": "python3"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}
with open("n.ipynb", "w") as file:
    json.dump(notebook, file)
command = [sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--allow-errors", "n.ipynb", "--output", "done.ipynb"]
subprocess.run(command, check=True, capture_output=True)
with open("done.ipynb") as file:
    text = file.read()
assert "then 6.0" in text and "RuntimeError" in text
torch.save({"ok": True}, sys.argv[1])
