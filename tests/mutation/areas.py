"""Areas of mutation testing: the mutated files, the tests that judge them, and the required score."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["AREAS", "Area"]


@dataclass(frozen=True)
class Area:
    """A part of the product.

    Attributes:
        name: Of the area, in the report.
        paths: Files and folders that are mutated, relative to the repository.
        tests: Files and folders of tests that are run, where they reach the fault.
        bar: Percent of the mutants that tests must find.
        emitted: Whether faults are planted inside of emitted text as well.
        count: How many mutants are drawn; None: the default.
        budget_s: A mutant is judged by tests that reach it and usually take so long together.
    """

    name: str
    paths: tuple[str, ...]
    tests: tuple[str, ...]
    bar: int = 90
    emitted: bool = False
    count: int | None = None
    budget_s: float = 20.0

    def files(self, root: Path) -> list[str]:
        """The Python files that are mutated, in order."""
        found: list[Path] = []
        for path in self.paths:
            found += sorted((root / path).rglob("*.py")) if (root / path).is_dir() else [root / path]
        return [str(path.relative_to(root)) for path in found]


UNIT: Final = "tests/unit"
AREAS: Final = {
    area.name: area
    for area in (
        Area("wis/verify", ("wis/verify",), tuple(
            f"{UNIT}/test_wis/test_{name}.py"
            for name in ("verify_launches", "verify_lifetimes", "verify_reuse", "verify_signatures", "verify_limits", "program", "golden")
        )),
        Area("scheduler", ("scheduler/dispatch", "scheduler/vram", "scheduler/placement"), (f"{UNIT}/test_scheduler",)),
        Area("billing", ("billing",), (f"{UNIT}/test_billing",)),
        Area("services/kit/access", ("services/kit/access",), (
            f"{UNIT}/test_access", f"{UNIT}/test_kit/test_credentials.py",
            "tests/architecture/test_secrets.py",
        )),
        Area("wis/kernel/verify", ("wis/kernel/verify",), (
            *(f"{UNIT}/test_wis/test_kernel{name}.py" for name in (
                "", "_arguments", "_expand", "_findings", "_meaning", "_text", "_uniformity", "_values", "_verified",
            )), "tests/property/test_wis_kernel_properties.py",
        )),
        Area("jit/host/simt bounds", ("jit/host/simt/memory.py", "jit/host/simt/runtime.py", "jit/host/simt/guard.py"), (
            f"{UNIT}/test_simt", "tests/adversarial", "tests/property/test_kernel_devices_properties.py",
        ), emitted=True, budget_s=120.0),
        Area("jit/kernels/cfamily bounds", (
            "jit/kernels/cfamily/memory.py", "jit/kernels/cfamily/regions.py", "jit/kernels/cfamily/language.py",
        ), (
            f"{UNIT}/test_jit/test_cfamily.py", f"{UNIT}/test_simt/test_accesses.py", "tests/adversarial",
            "tests/property/test_kernel_devices_properties.py",
        ), emitted=True, budget_s=120.0),
        Area("services/server/intake", ("services/server/intake.py",), (f"{UNIT}/test_server/test_intake.py",)),
        Area("jit/plan", ("jit/plan",), (
            f"{UNIT}/test_jit/test_planning.py", f"{UNIT}/test_jit/test_programs.py", f"{UNIT}/test_jit/test_elementwise.py",
            f"{UNIT}/test_jit/test_engine.py", f"{UNIT}/test_jit/test_runs.py", f"{UNIT}/test_jit/test_spaces.py",
        ), bar=75),
        Area("wooly/device/lowering", ("wooly/device/lowering",), (f"{UNIT}/test_lowering", f"{UNIT}/test_device"), bar=75),
    )
}  # fmt: skip
