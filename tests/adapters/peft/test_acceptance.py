"""PEFT's own tests, from its source distribution, on FlyLoRA: fetched here, never kept."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

pytest.importorskip("peft")
NEEDED = ("transformers", "diffusers", "datasets", "parameterized")  # PEFT's tests import them
for _name in NEEDED:
    if importlib.util.find_spec(_name) is None:
        pytest.skip(f"PEFT's tests need {_name}", allow_module_level=True)

ROOT = Path(__file__).parents[3]
SUITE = ("test_custom_models.py", "test_decoder_models.py", "test_config.py")
# What need not pass, and why.
EXPECTED = {
    "test_from_pretrained[": "wants the hub",
    "test_from_pretrained_cache_dir[": "wants the hub",
    "test_save_pretrained_with_runtime_config[": "of LoRA's runtime_config alone",
    "test_save_pretrained_pickle[": "loads a pickle, which flyk does not open",
    "test_save_pretrained_selected_adapters_pickle[": "the same",
    "test_mixed_adapter_batches_merged_raises[FlyLoRA mixed winners": "merges first, and k < r has nothing to merge",
}
LEAST = 500


def fetch(into: Path) -> Path:
    """PEFT's source distribution of the installed version, unpacked."""
    import peft

    version = peft.__version__
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--no-binary", ":all:", "--dest", str(into), f"peft=={version}"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        pytest.skip(f"PEFT's source distribution can't be had here: {ran.stderr.strip()[-300:]}")
    with tarfile.open(next(into.glob("peft-*.tar.gz"))) as archive:
        archive.extractall(into, filter="data")
    return into / f"peft-{version}"


@pytest.mark.slow
def test_peft_s_own_tests_pass(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    source = fetch(tmp_path)
    (source / "tests" / "__init__.py").touch()
    tiny = LlamaConfig(
        vocab_size=100, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4
    )  # fmt: skip
    LlamaForCausalLM(tiny).save_pretrained(tmp_path / "llama")
    paths = os.pathsep.join((str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    env = os.environ | {"HF_HUB_OFFLINE": "1", "FLYK_TINY_LLAMA": str(tmp_path / "llama"), "PYTHONPATH": paths}
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-o", "filterwarnings=", "-p", "flylora_cases"]
    command += ["-p", "no:cacheprovider", "-k", "Fly", f"--junitxml={tmp_path / 'ran.xml'}"]
    command += [f"tests/{name}" for name in SUITE]
    ran = subprocess.run(command, cwd=source, env=env, capture_output=True, text=True, check=False)
    cases = ET.parse(tmp_path / "ran.xml").getroot().iter("testcase")
    outcome = {f"{case.get('name')}": {child.tag for child in case} for case in cases}
    passed = [name for name, tags in outcome.items() if not tags & {"failure", "error", "skipped"}]
    failed = [name for name, tags in outcome.items() if tags & {"failure", "error"}]
    unexpected = [name for name in failed if not name.startswith(tuple(EXPECTED))]
    assert unexpected == [], ran.stdout[-5000:]
    assert len(passed) >= LEAST
