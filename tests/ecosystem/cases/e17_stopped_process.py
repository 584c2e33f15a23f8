"""A process stopped for longer than its lease, then resumed: it ends with an error, or continues."""

# cpu: no
import signal
import subprocess
import sys
import time

import torch

code = "import torch, sys\nx = torch.ones(3, device='cuda')\nprint(x.sum().item(), flush=True)\nsys.stdin.readline()\nprint('then', (x * 2).sum().item())\n"
child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
child.stdout.readline()
child.send_signal(signal.SIGSTOP)
time.sleep(40)
child.send_signal(signal.SIGCONT)
out, errors = child.communicate("\n", timeout=60)
sys.stderr.write(errors)
assert "then 6.0" in out, errors.strip().splitlines()[-1]
torch.save({"ok": True}, sys.argv[1])
