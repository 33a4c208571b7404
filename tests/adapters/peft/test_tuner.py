"""FlyLoRA inside PEFT, beyond PEFT's own tests: seeds, files, mixed batches, dtypes, compile, Trainer, transformers."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

from peft import PeftModel, get_peft_model, inject_adapter_in_model  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from flyk.adapters import RoutingMonitor, adapters, merge, task_conflict, update_routing_bias  # noqa: E402
from flyk.adapters.peft import FlyLoraConfig, swap_adapter_  # noqa: E402

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


def compiled(model: nn.Module, **options):
    torch.compiler.reset()
    return torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager", **options)


def test_a_whole_model_compiles_without_a_break_and_once_for_all_batch_sizes() -> None:
    model = tuned()
    with torch.no_grad():
        explained = torch._dynamo.explain(model)(IDS)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)
    run = compiled(model)
    for step, rows in enumerate((2, 3, 7)):
        ids = torch.arange(7 * rows).view(rows, 7) % 50
        with torch._dynamo.config.patch(error_on_recompile=step > 0), torch.no_grad():
            torch.testing.assert_close(run(ids).logits, model(ids).logits)


def test_swapping_an_adapter_in_place_needs_no_recompile(tmp_path: Path) -> None:
    model, other = tuned(), tuned(seed=9)
    for layer in adapters(other).values():
        nn.init.normal_(layer.B)
        nn.init.normal_(layer.routing_bias, std=0.1)
    other.save_pretrained(tmp_path / "other")
    tensors = [t for layer in adapters(model).values() for t in (layer.B, layer.projection.values, layer.routing_bias)]
    places = [t.data_ptr() for t in tensors]
    run = compiled(model)
    with torch.no_grad():
        before = run(IDS).logits
        with torch._dynamo.config.patch(error_on_recompile=True):
            swap_adapter_(model, tmp_path / "other")
            after = run(IDS).logits
    torch.testing.assert_close(after, logits(other))
    assert not torch.allclose(after, before)
    again = [t for layer in adapters(model).values() for t in (layer.B, layer.projection.values, layer.routing_bias)]
    assert [t.data_ptr() for t in again] == places


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"r": 4}, "directory must hold an adapter of r 8, got 4"),
        ({"selection": "signed"}, "an adapter of selection 'magnitude', got 'signed'"),
        ({"target_modules": ["q_proj"]}, "an adapter of target_modules"),
    ],
)
def test_an_adapter_of_another_form_is_not_swapped_in(tmp_path: Path, options, sentence: str) -> None:
    model = tuned()
    out = logits(model)
    tuned(**options).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=sentence):
        swap_adapter_(model, tmp_path)
    with pytest.raises(ValueError, match="must be of a FlyLoRA adapter of the model, got 'x'; it has 'default'"):
        swap_adapter_(model, tmp_path, "x")
    assert torch.equal(logits(model), out)


def test_tensors_of_other_shapes_are_not_swapped_in(tmp_path: Path) -> None:
    model = tuned()
    model.save_pretrained(tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    held = load_file(path)
    key = next(key for key in held if key.endswith(".B"))
    for wrong, got in (({key: held[key][:1]}, r"\(1, 8\)"), ({}, "None")):
        save_file({k: t for k, t in held.items() if k != key} | wrong, path)
        with pytest.raises(ValueError, match=rf"must hold .*\.B of shape \(32, 8\), got {got}"):
            swap_adapter_(model, tmp_path)


def test_a_folder_with_a_pickle_alone_is_not_opened(tmp_path: Path) -> None:
    tuned().save_pretrained(str(tmp_path))
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    for load in (lambda: PeftModel.from_pretrained(llama(), str(tmp_path)), lambda: swap_adapter_(tuned(), tmp_path)):
        with pytest.raises(ValueError, match=r"must hold adapter_model.safetensors, got a pickle, adapter_model.bin"):
            load()


def test_more_ranks_than_a_layer_can_use_are_refused_before_memory_is_taken() -> None:
    for options in ({"r": 1 << 16, "k": 1 << 16}, {"rank_pattern": {"q_proj": 1 << 16}}):
        with pytest.raises(ValueError, match="r must be from 1 to 1024 for 32 inputs and 32 outputs, got 65536"):
            get_peft_model(llama(), config(**options))


def test_one_module_to_save_is_one_name() -> None:
    model = tuned(modules_to_save="lm_head")
    saved = {name.rsplit(".", 2)[0] for name, p in model.named_parameters() if p.requires_grad and "to_save" in name}
    assert saved == {"base_model.model.lm_head.modules_to_save"}


def test_the_routing_is_watched_and_tasks_are_compared() -> None:
    model = tuned()
    with RoutingMonitor(model) as monitor:
        model(IDS)
    report = monitor.report()
    assert len(report) == 4
    assert all(found["tokens"] == IDS.numel() and sum(found["usage"]) == pytest.approx(2) for found in report.values())
    conflicts = task_conflict(model, {"a": [IDS], "b": [{"input_ids": IDS}]})
    assert all(found["conflicts"] == [("a", "b")] for found in conflicts.values())


def test_merging_as_a_plain_model_is_refused() -> None:
    with pytest.raises(ValueError, match="model must not be PEFT's, got one with a peft_config"):
        merge(tuned(r=4, k=4))
    with pytest.raises(ValueError, match="model must not be PEFT's"):
        merge(inject_adapter_in_model(config(r=4, k=4), llama()))


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


def test_trains_in_accelerate_as_in_a_plain_loop() -> None:
    accelerate = pytest.importorskip("accelerate")
    rows = torch.arange(96).view(12, 8) % 50

    def run(prepare, backward, accumulate) -> PeftModel:
        model = tuned().train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        loader = torch.utils.data.DataLoader(rows, batch_size=3)
        model, optimizer, loader = prepare(model, optimizer, loader)
        for number, ids in enumerate(loader, 1):
            with accumulate(model):
                backward(model(input_ids=ids, labels=ids).loss)
                if number % 2 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
                    update_routing_bias(model)
        return model

    plain = run(lambda *objects: objects, lambda loss: (loss / 2).backward(), lambda _: contextlib.nullcontext())
    one = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    same = run(one.prepare, one.backward, one.accumulate)
    for mine, right in zip(adapters(same).values(), adapters(plain).values(), strict=True):
        torch.testing.assert_close(mine.B, right.B)
        assert torch.equal(mine.routing_bias, right.routing_bias)
        assert mine.routing_bias.any()


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
    "many options": ({"target_modules": ".?" * 40 + "!"}, ValueError, "pattern that cannot take long"),
    "many alternatives": ({"target_modules": "(.|..)" * 30 + "!"}, ValueError, "pattern that cannot take long"),
    "a repetition behind a flag": ({"target_modules": "(?x)(.+) +!"}, ValueError, "pattern that cannot take long"),
    "a repetition within flags": ({"rank_pattern": {"(?x:(.+) +!)": 1}}, ValueError, "that cannot take long"),
    "stars beside PEFT's own": ({"rank_pattern": {".*.*.*": 1}}, ValueError, "rank_pattern must be a pattern that"),
    "a repetition too large": ({"target_modules": "a{99999999999}"}, ValueError, "target_modules must be names or a"),
    "dropout a bool": ({"dropout": True}, TypeError, "dropout must be a number, got True"),
    "inference_mode": ({"inference_mode": "no"}, TypeError, "inference_mode must be True or False, got 'no'"),
    "layers_to_transform": ({"layers_to_transform": [0, "1"]}, TypeError, "layers_to_transform must be an int"),
    "layers_to_transform below 0": ({"layers_to_transform": -1}, ValueError, "layers_to_transform must be at least 0"),
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
    "pattern",
    [
        r".*\.layers\.\d+\.(self_attn|mlp)\.(q|k|v|o|gate|up|down)_proj",
        r".*\.(?:q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)",
        r"model\.layers\.(0|1|2|3|4|5|6|7|8|9|10|11)\.self_attn\.(q|v)_proj",
    ],
)
def test_usual_patterns_are_taken(pattern: str) -> None:
    assert config(target_modules=pattern).target_modules == pattern


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
