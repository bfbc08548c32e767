"""Second moments of inputs: the numbers, what is left out, and that a model is left as it was."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
)

import mpobert_plugin as mp
from mpobert_plugin.calibrate import input_metrics
from mpobert_plugin.errors import ConfigError, ConversionError, ModelTypeError, TargetError

from .models import SIZES, assert_untouched, ids, snapshot, tiny_albert, tiny_bert


def recorded(model, name, batches):
    """Collect what enters one module, by a hook of the test's own."""
    rows = []
    hook = model.get_submodule(name).register_forward_pre_hook(
        lambda _, args: rows.append(args[0].reshape(-1, args[0].shape[-1]).double())
    )
    with torch.no_grad():
        for batch in batches:
            model(**batch)
    hook.remove()
    return torch.cat(rows)


def test_mean_of_outer_products():
    model = tiny_bert()
    batches = [{"input_ids": ids(2, 7)}, {"input_ids": ids(3, 5)}]
    found = input_metrics(model, batches, ["query", "ffn_out"])
    for role, path in (("query", "attention.self.query"), ("ffn_out", "output.dense")):
        assert len(found[role]) == 4
        for layer, H in enumerate(found[role]):
            x = recorded(model, f"bert.encoder.layer.{layer}.{path}", batches)
            assert H.dtype == torch.float64
            torch.testing.assert_close(H, x.T @ x / len(x))
            assert torch.equal(H, H.T)


def test_trace_is_the_mean_squared_error_of_the_output():
    model, batches = tiny_bert(), [{"input_ids": ids(4, 9)}]
    H = input_metrics(model, batches, ["value"])["value"][1]
    x = recorded(model, "bert.encoder.layer.1.attention.self.value", batches)
    D = torch.randn(32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    measured = (x @ D.T).square().sum(1).mean()
    torch.testing.assert_close(torch.trace(D @ H @ D.T), measured)


def test_masked_positions_are_left_out():
    model = tiny_bert()
    padded = ids(2, 9).clone()
    mask = torch.ones_like(padded)
    padded[:, 6:], mask[:, 6:] = 0, 0
    short = input_metrics(model, [{"input_ids": padded[:, :6]}], ["ffn_in"])["ffn_in"]
    batch = {"input_ids": padded, "attention_mask": mask}
    for dtype in (torch.int64, torch.bool, torch.float32):
        masked = input_metrics(model, [{**batch, "attention_mask": mask.to(dtype)}], ["ffn_in"])[
            "ffn_in"
        ]
        for a, b in zip(short, masked, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
    every = input_metrics(model, [{"input_ids": padded}], ["ffn_in"])["ffn_in"]
    assert float((every[1] - short[1]).norm() / short[1].norm()) > 1e-3


def test_tensors_of_ids_are_batches():
    model = tiny_bert()
    one = input_metrics(model, [ids()], ["key"])["key"]
    two = input_metrics(model, iter([{"input_ids": ids()}]), ["key"])["key"]
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_inputs_in_common_have_one_metric():
    found = input_metrics(tiny_bert(), [ids(), ids(3, 4)], ["query", "key", "value", "ffn_in"])
    for q, k, v, f in zip(*found.values(), strict=True):
        assert q is k is v
        assert f is not q


def test_changed_inputs_are_other_inputs():
    model = tiny_bert(num_hidden_layers=1)
    attention = model.bert.encoder.layer[0].attention.self
    # The key sees what the query saw, changed in place in between.
    attention.query.register_forward_hook(lambda _module, args, _output: _double(args[0]))
    found = input_metrics(model, [ids()], ["query", "key"])
    torch.testing.assert_close(found["key"][0], 4 * found["query"][0])


def _double(x):
    x.mul_(2.0)


def test_layers_that_run_several_times():
    model = tiny_albert()
    (H,) = input_metrics(model, [ids()], ["query"])["query"]
    name = "albert.encoder.albert_layer_groups.0.albert_layers.0.attention.query"
    x = recorded(model, name, [{"input_ids": ids()}])
    assert len(x) == 4 * ids().numel()
    torch.testing.assert_close(H, x.T @ x / len(x))


def test_matrices_beside_the_layers():
    model = tiny_bert(BertForSequenceClassification)
    mask = torch.ones_like(ids())
    mask[:, 5:] = 0
    batch = {"input_ids": ids(), "attention_mask": mask}
    (H,) = input_metrics(model, [batch], ["pooler"])["pooler"]
    x = recorded(model, "bert.pooler.dense", [batch])
    assert len(x) == 2
    torch.testing.assert_close(H, x.T @ x / 2)


def test_transposed_matrices():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=99, n_embd=16, n_layer=2, n_head=2)).eval()
    roles = list(mp.families.family_for("gpt2").matrices)
    found = input_metrics(model, [ids()], roles)
    assert {H.shape[0] for values in found.values() for H in values} == {16, 64}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_element_types(dtype):
    exact = input_metrics(tiny_bert().double(), [ids()], ["ffn_out"])["ffn_out"]
    found = input_metrics(tiny_bert().to(dtype), [ids()], ["ffn_out"])["ffn_out"]
    for a, b in zip(exact, found, strict=True):
        assert b.dtype == torch.float64
        assert float((a - b).norm() / a.norm()) < 0.05


def test_converted_models():
    plain = tiny_bert()
    before = input_metrics(plain, [ids()], ["query"])["query"]
    after = input_metrics(mp.convert(plain), [ids()], ["query"])["query"]
    for a, b in zip(before, after, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def dropping_bert():
    config = BertConfig(**{**SIZES, "hidden_dropout_prob": 0.5})
    torch.manual_seed(0)
    return BertForSequenceClassification(config).train()


@pytest.mark.parametrize("good", [True, False])
def test_the_model_and_random_numbers_are_as_before(good):
    model = dropping_bert()
    model.bert.encoder.layer[1].eval()
    before, flags = snapshot(model), [m.training for m in model.modules()]
    state = torch.get_rng_state()
    if good:
        first, again = (input_metrics(model, [ids()], ["query"])["query"] for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    else:
        with pytest.raises(ConversionError, match="batch 1 of calibration"):
            input_metrics(model, [ids(), torch.full((1, 3), 5000)], ["query"])
    assert_untouched(model, before)
    assert [m.training for m in model.modules()] == flags
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_interrupted_batches_leave_no_trace():
    model = dropping_bert()

    def interrupted():
        yield ids()
        raise KeyboardInterrupt

    before, flags = snapshot(model), [m.training for m in model.modules()]
    with pytest.raises(KeyboardInterrupt):
        input_metrics(model, interrupted(), ["query"])
    assert_untouched(model, before)
    assert [m.training for m in model.modules()] == flags
    assert not any(module._forward_pre_hooks for module in model.modules())


FAULTS = [
    ([], ConfigError, "calibration must hold at least one batch, got none. An iterator that"),
    (ids(), ConfigError, r"calibration must be a list .* got one Tensor\. Put it into a list\."),
    ({"input_ids": ids()}, ConfigError, "got one dict. Put it into a list."),
    ("text", ConfigError, "got one str"),
    (None, ConfigError, "got one NoneType"),
    (["text"], ConfigError, "got str as batch 0"),
    ([ids(), [1, 2]], ConfigError, "got list as batch 1"),
    ([{}], ConversionError, r"batch 0 of calibration must be one that BertForMaskedLM can run"),
    ([{"ids": ids()}], ConversionError, r"got ids \(2, 7\): \w+Error: "),
    ([torch.full((1, 3), 5000)], ConversionError, r"got input_ids \(1, 3\): IndexError"),
    ([torch.zeros(2, 3)], ConversionError, r"got input_ids \(2, 3\): RuntimeError"),
    ([torch.zeros(2, 41, dtype=torch.long)], ConversionError, r"got input_ids \(2, 41\)"),
    (
        [{"input_ids": ids(), "attention_mask": torch.ones(2, 7, 7)}],
        ConfigError,
        r"attention_mask of batch 0 .* in the shape \(2, 7\), got \(2, 7, 7\)\.",
    ),
    (
        [{"input_ids": ids(), "attention_mask": [1]}],
        ConfigError,
        r"attention_mask of batch 0 .* got list\.",
    ),
    (
        [{"input_ids": ids(), "attention_mask": torch.zeros(2, 7)}],
        ConversionError,
        r"calibration must reach bert\.encoder\.layer\.0\.attention\.self\.query, which was called",
    ),
    ([ids()[:0]], ConversionError, "calibration must reach|batch 0"),
]


@pytest.mark.parametrize(("batches", "kind", "message"), FAULTS)
def test_bad_batches(batches, kind, message):
    model = tiny_bert().train()
    before = snapshot(model)
    with pytest.raises(kind, match=message):
        input_metrics(model, batches, ["query"])
    assert_untouched(model, before)
    assert model.training


def test_used_iterators_are_told():
    batches = iter([ids()])
    input_metrics(tiny_bert(), batches, ["query"])
    with pytest.raises(ConfigError, match="An iterator that was used before is empty"):
        input_metrics(tiny_bert(), batches, ["query"])


def test_inputs_that_are_not_finite():
    model = tiny_bert()
    with torch.no_grad():
        model.bert.encoder.layer[1].output.LayerNorm.weight[3] = torch.inf
    with pytest.raises(ConversionError, match=r"inputs of bert\.encoder\.layer\.2\.attention"):
        input_metrics(model, [ids()], ["query"])


def test_unknown_roles_and_models():
    with pytest.raises(TargetError, match="roles must name matrices of the model, got 'querry'"):
        input_metrics(tiny_bert(), [ids()], ["querry"])
    with pytest.raises(TargetError, match="got 'pooler'"):
        input_metrics(tiny_bert(), [ids()], ["pooler"])
    with pytest.raises(ModelTypeError):
        input_metrics(torch.nn.Linear(2, 2), [ids()], ["query"])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_on_a_gpu(dtype):
    exact = input_metrics(tiny_bert().double(), [ids()], ["ffn_out"])["ffn_out"]
    model = tiny_bert().to("cuda", dtype)
    state = torch.cuda.get_rng_state()
    found = input_metrics(model, [ids()], ["ffn_out"])["ffn_out"]
    assert torch.equal(torch.cuda.get_rng_state(), state)
    for a, b in zip(exact, found, strict=True):
        assert b.dtype == torch.float32
        assert b.is_cuda
        assert float((a - b.cpu()).norm() / a.norm()) < 0.05


def test_what_has_no_values_is_refused_before_anything_runs():
    text = r"batch 1 of calibration must have values, got a tensor of shape \(2, 3\) on the meta"
    with pytest.raises(ConfigError, match=text):
        mp.convert(tiny_bert(), max_bond=2, calibration=[ids(), ids(2, 3).to("meta")])
    with pytest.raises(ConfigError, match=r"^input_ids of batch 0 of calibration must have values"):
        input_metrics(tiny_bert(), [{"input_ids": ids().to("meta")}], ["query"])
    text = r"embeddings\.weight must have values, got a tensor on the meta device\. Load the model"
    with pytest.raises(ConversionError, match=text):
        mp.convert(tiny_bert().to("meta"), max_bond=2, calibration=[ids()])
