"""The scripts of ``make models`` have the models that the page says."""

from __future__ import annotations

import pytest
import torch
import transformers

from benchmarks.models import MODELS, parameters, script


@pytest.mark.parametrize("name", MODELS)
def test_a_script_has_the_shape_that_the_page_says(name: str) -> None:
    shape = MODELS[name]
    before, names = script(shape).split("model = ")[0], {"torch": torch, "transformers": transformers}
    exec(compile(before, name, "exec"), names)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(names["config"])
    count = sum(p.numel() for p in model.parameters())
    assert 0 <= count - parameters(shape) < 0.002 * count  # norms and biases
