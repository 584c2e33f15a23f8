"""Ctrl-C in a running script: it ends with KeyboardInterrupt within seconds."""

# cpu: no
import signal
import subprocess
import sys
import time

import torch

code = "import signal, torch\nsignal.signal(signal.SIGINT, signal.default_int_handler)\nx = torch.randn(64, 64).cuda()\nprint('ready', x.sum().item(), flush=True)\nwhile True:\n    x = (x @ x).tanh()\n    x.sum().item()\n"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
child.stdout.readline()
started = time.monotonic()
child.send_signal(signal.SIGINT)
_, errors = child.communicate(timeout=60)
assert "KeyboardInterrupt" in errors and child.returncode in (130, -2), (child.returncode, errors)
assert time.monotonic() - started < 30
torch.save({"ok": True}, sys.argv[1])
