"""Model scripts on a back end, in process, beside what they give on the CPU: ``python -m tests.conformance.models --backend opencl``.

Each script of tests/integration/scripts runs in a process of its own. The report lists what differs by more than the tolerance of its type,
and what of the programs had no kernel and ran through the reference.
"""

from __future__ import annotations

import argparse
import json
import runpy
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parents[1] / "integration" / "scripts"
NAMES = ["mlp", "cnn", "gpt2", "llama", "lora", "t5", "amp", "rnn", "vision", "attention", "indexing", "loader", "saving"]
HEADING = "\n## Model scripts\n"


def on_backend(backend: str, script: str, out: str, report: str) -> None:
    """In the child: run the script with an engine in this process as its device."""
    from jit.accel.engine import AccelEngine
    from jit.backends import create_engine
    from tests.support.loopback import LoopbackLink
    from wooly.activation import activate
    from wooly.config import Config

    cache = Path(tempfile.gettempdir()) / "wooly-conformance"
    engine = create_engine(backend, cache_dir=cache, threads=2, vram_bytes=4 << 30)
    link = LoopbackLink(engine)
    activate(Config(local_gpu=True), lambda index: link)
    sys.argv = [script, out]
    start = time.monotonic()
    runpy.run_path(str(SCRIPTS / f"{script}.py"), run_name="__main__")
    figures: dict[str, Any] = {"seconds": round(time.monotonic() - start, 2), "flushes": link.seq}
    if isinstance(engine, AccelEngine):
        steps = Counter(instr.op.name for plan in engine.plans() for instr in plan.fallbacks)
        figures |= {"kernels": engine.kernels, "compiled": engine.device.compiled, "reference": dict(steps)}
    Path(report).write_text(json.dumps(figures))


def compare(script: str, backend: str) -> tuple[dict[str, Any], str]:
    """(figures, what is wrong or "")."""
    import torch

    from tests.integration.test_models import COMPUTED_IN
    from tests.integration.test_models import compare as agree
    from tests.support.stack import plain_environment

    with tempfile.TemporaryDirectory() as folder:
        want, have, report = (str(Path(folder) / name) for name in ("cpu.pt", "device.pt", "report.json"))
        plain = [sys.executable, str(SCRIPTS / f"{script}.py"), want]
        there = [sys.executable, "-m", "tests.conformance.models", "--child", backend, script, have, report]
        for command, gpu in ((plain, {"CUDA_VISIBLE_DEVICES": ""}), (there, {})):  # the CPU's results, also where there is a GPU
            done = subprocess.run(command, env=plain_environment(**gpu), capture_output=True, text=True, timeout=900)
            if done.returncode:
                return {}, f"failed: {done.stderr[-1500:]}"
        figures = json.loads(Path(report).read_text())
        found, expected = (torch.load(path, weights_only=False) for path in (have, want))
        try:
            agree(found, expected, exact=False, computed_in=COMPUTED_IN.get(script))
        except AssertionError as difference:
            return figures, str(difference)[:600]
        return figures, ""


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        on_backend(*sys.argv[2:6])
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="opencl")
    parser.add_argument("--scripts", default=",".join(NAMES))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--publish", action="store_true", help="put the table at the end of the backend's file in docs/")
    options = parser.parse_args()
    results, scripts = [], options.scripts.split(",")
    with ThreadPoolExecutor(options.processes) as pool:
        compared = list(pool.map(lambda script: compare(script, options.backend), scripts))
    for script, (figures, complaint) in zip(scripts, compared, strict=True):
        results.append((script, figures, complaint))
        print(f"{script:10} {'differs: ' + complaint if complaint else 'as on the CPU'}  {json.dumps(figures)}", flush=True)
    if options.publish:
        path = Path(__file__).parents[2] / "docs" / f"conformance-{options.backend}.md"
        text = path.read_text().partition(HEADING)[0] if path.exists() else ""
        path.write_text(text + _section(results))
    return 1 if any(complaint for _, _, complaint in results) else 0


def _section(results: list[tuple[str, dict[str, Any], str]]) -> str:
    lines = [
        HEADING,
        "The scripts of tests/integration/scripts, in process, beside the CPU. *steps by the reference*: instructions of their plans for",
        "which there is no kernel; each runs through the definition, on the device's memory or a copy.",
        "",
        "| script | result | kernels | steps by the reference |",
        "|---|---|---|---|",
    ]
    for script, figures, complaint in results:
        steps = ", ".join(f"{name} {n}" for name, n in sorted(figures.get("reference", {}).items())) or "none"
        result = complaint.splitlines()[0][:100].replace("|", "\\|") if complaint else "as on the CPU"
        lines.append(f"| {script} | {result} | {figures.get('kernels', '')} | {steps} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
