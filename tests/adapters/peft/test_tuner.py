"""FlyLoRA inside PEFT, beyond PEFT's own tests: seeds, files, mixed batches, dtypes, compile, Trainer, transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

from peft import PeftModel, get_peft_model, inject_adapter_in_model  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from flyk.adapters import RoutingMonitor, adapters, update_routing_bias  # noqa: E402
from flyk.adapters.peft import FlyLoraConfig  # noqa: E402

IDS = torch.arange(14).view(2, 7)


def llama(**options) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=50, **sizes, **options)).eval()


def config(**options) -> FlyLoraConfig:
    given = {"r": 8, "k": 2, "target_modules": ["q_proj", "v_proj"], "init_weights": False, "task_type": "CAUSAL_LM"}
    return FlyLoraConfig(**(given | options))


def tuned(**options) -> PeftModel:
    torch.manual_seed(1)
    return get_peft_model(llama(), config(**options)).eval()


def logits(model: nn.Module, **options) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS, **options).logits


@pytest.mark.parametrize("low_cpu_mem_usage", [False, True])
@pytest.mark.parametrize("save_projection", [False, True])
def test_saved_and_loaded(tmp_path: Path, low_cpu_mem_usage: bool, save_projection: bool) -> None:
    model = tuned(save_projection=save_projection)
    model.save_pretrained(str(tmp_path))
    kinds = {key.rsplit("flylora_update.", 1)[1] for key in load_file(tmp_path / "adapter_model.safetensors")}
    stored = {"projection.values", "projection.indices"} if save_projection else set()
    assert kinds == {"B", "routing_bias", "projection.seed"} | stored
    again = PeftModel.from_pretrained(llama(), str(tmp_path), low_cpu_mem_usage=low_cpu_mem_usage, is_trainable=True)
    assert torch.equal(logits(again.eval()), logits(model))
    again.train()(input_ids=IDS, labels=IDS).loss.backward()


def test_another_seed_is_another_adapter_and_a_layer_has_its_own() -> None:
    seeds = [int(a.projection.seed) for s in (0, 1) for a in adapters(tuned(seed=s)).values()]
    assert len(set(seeds)) == len(seeds) == 8


def test_injected_and_by_transformers_itself(tmp_path: Path) -> None:
    injected = inject_adapter_in_model(config(), llama())
    torch.manual_seed(1)
    assert len(adapters(injected)) == 4
    model = llama()
    model.add_adapter(config())
    out = logits(model)
    model.save_pretrained(tmp_path)
    again = llama()
    again.load_adapter(str(tmp_path))
    assert torch.equal(logits(again.eval()), out)


def test_rows_of_a_batch_by_adapter() -> None:
    model = tuned()
    model.add_adapter("other", config(r=4, k=4, seed=5))
    rows = logits(model, adapter_names=["default", "other"])
    alone = {}
    for name in ("default", "other"):
        model.set_adapter(name)
        alone[name] = logits(model)
    with model.disable_adapter():
        base = logits(model)
    torch.testing.assert_close(rows, torch.stack([alone["default"][0], alone["other"][1]]))
    torch.testing.assert_close(logits(model, adapter_names=["__base__", "other"])[0], base[0])
    with pytest.raises(ValueError, match=r"non-existing adapter.*nothing"):
        logits(model, adapter_names=["default", "nothing"])
    with pytest.raises(ValueError, match="Length of `adapter_names`"):
        logits(model, adapter_names=["default"])
    with pytest.raises(ValueError, match="training mode"):
        model.train()(IDS, adapter_names=["default", "other"])


def test_several_active_adapters_add_up_and_a_deleted_one_leaves_nothing() -> None:
    model = tuned()
    model.add_adapter("other", config(seed=5, target_modules=["q_proj"]))
    layer = model.base_model.model.model.layers[0].self_attn.q_proj
    x = torch.randn(3, 32)
    base = layer.base_layer(x)
    each = []
    for name in ("default", "other"):
        model.set_adapter(name)
        each.append(layer(x) - base)
    model.base_model.set_adapter(["default", "other"])
    torch.testing.assert_close(layer(x), base + each[0] + each[1])
    model.delete_adapter("other")
    assert not any("other" in name for name, _ in model.named_modules())


def test_merging_is_exact_for_k_r_and_refused_below(tmp_path: Path) -> None:
    exact = tuned(r=4, k=4)
    out = logits(exact)
    torch.testing.assert_close(logits(exact.merge_and_unload()), out, rtol=1e-4, atol=1e-5)
    winners = tuned()
    with pytest.raises(NotImplementedError, match="k = 2 of r = 8 cannot be merged into a weight"):
        winners.merge_and_unload()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_half_base_gets_float32_adapters(dtype: torch.dtype) -> None:
    model = get_peft_model(llama().to(dtype), config())
    for layer in adapters(model).values():
        assert layer.B.dtype == layer.projection.values.dtype == layer.routing_bias.dtype == torch.float32
    assert logits(model).dtype == dtype


def test_under_autocast() -> None:
    model = tuned().train()
    with torch.autocast("cpu", torch.bfloat16):
        model(input_ids=IDS, labels=IDS).loss.backward()
    assert all(layer.B.grad.abs().sum() > 0 for layer in adapters(model).values())


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_gives_the_same_gradients_and_counts_once(use_reentrant: bool) -> None:
    grads, counts = [], []
    for checkpoint in (False, True):
        model = tuned().train()
        if checkpoint:
            model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
            model.enable_input_require_grads()
        model(input_ids=IDS, labels=IDS).loss.backward()
        grads.append([layer.B.grad for layer in adapters(model).values()])
        counts.append([layer.counts for layer in adapters(model).values()])
    for plain, recomputed in zip(*grads, strict=True):
        torch.testing.assert_close(plain, recomputed)
    for plain, recomputed in zip(*counts, strict=True):
        assert torch.equal(plain, recomputed)
        assert plain.sum() == IDS.numel() * 2


def test_compiles_without_a_break() -> None:
    layer = tuned().base_model.model.model.layers[0].self_attn.q_proj
    x = torch.randn(3, 32)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))


def test_swapping_weights_in_place_needs_no_recompile() -> None:
    first, second = tuned(), tuned(seed=9)
    layer = first.base_model.model.model.layers[0].self_attn.q_proj
    other = second.base_model.model.model.layers[0].self_attn.q_proj
    x = torch.randn(3, 32)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        compiled(x)
        layer.swap_adapter_("default", other.flylora_update["default"])
        torch.testing.assert_close(compiled(x), other(x))
    with pytest.raises(ValueError, match="must have the settings"):
        layer.swap_adapter_(
            "default", tuned(r=4, k=2).base_model.model.model.layers[0].self_attn.q_proj.flylora_update["default"]
        )


def test_trains_and_resumes_in_trainer(tmp_path: Path) -> None:
    def run(steps: int, resume: bool = False) -> PeftModel:
        model = tuned(init_weights=True)
        data = [{"input_ids": row, "labels": row} for row in torch.arange(96).view(12, 8) % 50]
        arguments = transformers.TrainingArguments(
            str(tmp_path / ("a" if steps == 4 and not resume else "b")), max_steps=steps, save_steps=2, logging_steps=1,
            per_device_train_batch_size=2, gradient_accumulation_steps=2, gradient_checkpointing=True, report_to=[],
            use_cpu=True, disable_tqdm=True, learning_rate=1e-2, lr_scheduler_type="constant",
        )  # fmt: skip
        trainer = transformers.Trainer(
            model, arguments, train_dataset=data, callbacks=[RoutingMonitor(model).callback()]
        )
        trainer.train(resume_from_checkpoint=resume)
        return model

    whole = run(4)
    run(2)
    resumed = run(4, resume=True)
    for one, other in zip(adapters(whole).values(), adapters(resumed).values(), strict=True):
        torch.testing.assert_close(one.B, other.B)
        torch.testing.assert_close(one.routing_bias, other.routing_bias)


def test_the_routing_bias_moves_when_asked_alone() -> None:
    model = tuned().train()
    model(IDS)
    before = [layer.routing_bias.clone() for layer in adapters(model).values()]
    assert all(torch.equal(a.routing_bias, b) for a, b in zip(adapters(model).values(), before, strict=True))
    update_routing_bias(model)
    assert any(not torch.equal(a.routing_bias, b) for a, b in zip(adapters(model).values(), before, strict=True))


BAD = {
    "r a string": ({"r": "8"}, TypeError, "r must be an int, got str"),
    "r a bool": ({"r": True}, TypeError, "r must be a number, got True"),
    "r huge": ({"r": 10**9, "k": 1}, ValueError, "r must be from 1 to 65536"),
    "k negative": ({"k": -1}, ValueError, "k must be from 1 to 8, got -1"),
    "k above r": ({"k": 9}, ValueError, "k must be from 1 to 8, got 9"),
    "nnz zero": ({"nnz": 0}, ValueError, "nnz must be at least 1, got 0"),
    "alpha NaN": ({"alpha": float("nan")}, ValueError, "alpha must be finite"),
    "dropout 2": ({"dropout": 2}, ValueError, "dropout must be from 0 to 1"),
    "seed beyond int64": ({"seed": 2**63}, ValueError, "seed must be from 0"),
    "selection": ({"selection": "best"}, ValueError, "selection must be one of"),
    "bias": ({"bias": "lora_only"}, ValueError, "bias must be one of"),
    "init_weights": ({"init_weights": "yes"}, TypeError, "init_weights must be True or False, got 'yes'"),
    "rank_pattern": ({"rank_pattern": {"q": 0}}, ValueError, "rank_pattern must be from 1"),
    "rank_pattern a list": ({"rank_pattern": [1]}, TypeError, "rank_pattern must be a dict of names"),
    "modules a number": ({"target_modules": 3}, TypeError, "target_modules must be names or a pattern, got int"),
    "a pattern that hangs": ({"target_modules": "(a+)+$"}, ValueError, "pattern that cannot take long"),
    "many stars": ({"exclude_modules": ".*.*.*.*.*x"}, ValueError, "pattern that cannot take long"),
    "in a key": ({"alpha_pattern": {"(.*)*x": 1}}, ValueError, "alpha_pattern must be a pattern that cannot"),
    "no pattern": ({"target_modules": "("}, ValueError, "target_modules must be names or a pattern, got"),
    "layers_pattern alone": ({"layers_pattern": "h"}, ValueError, "layers_to_transform must be given"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_configuration_is_checked_when_it_is_made_and_when_it_is_read(tmp_path: Path, case: str) -> None:
    options, error, sentence = BAD[case]
    with pytest.raises(error, match=sentence):
        config(**options)
    config().save_pretrained(str(tmp_path))
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | options))
    with pytest.raises(error, match=sentence):
        FlyLoraConfig.from_pretrained(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: t["indices"].fill_(99), "indices must be from 0 to 31"),
        (lambda t: t["indices"].fill_(-1), "indices must be from 0 to 31"),
        (lambda t: t["indices"].fill_(3), "different within a row"),
        (lambda t: t.update(values=t["values"][:, :1]), "must have shape"),
        (lambda t: t.update(indices=t["indices"].float()), "floating and int32"),
    ],
)
def test_stored_projections_are_checked_before_a_kernel_sees_them(change, sentence: str) -> None:
    update = next(iter(adapters(tuned(save_projection=True)).values()))
    state = {key: value.clone() for key, value in update.projection.state_dict().items()}
    change(state)
    with pytest.raises(RuntimeError, match=sentence):
        update.projection.load_state_dict(state)
