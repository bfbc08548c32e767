"""Deep models at the start: factors by role and layer, Xavier's numbers, fresh weights."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoModelForMaskedLM

import mpobert_plugin as mp
from mpobert_plugin.errors import ConfigError, MPOBertWarning
from mpobert_plugin.init.stable import core_factor, xavier_std
from tests.mpobert_plugin.models import logits, tiny_albert

TINY = {
    "vocab_size": 99,
    "embedding_size": 16,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
}
ROLES = ("query", "key", "value", "attention_output", "ffn_in", "ffn_out")
SCALED = ROLES[2:]


def matrices(model, role):
    return [matrix.detach() for matrix in model.base_model.mpo[role].weights()]


class TestDeepen:
    @pytest.mark.parametrize("n", [2, 3, 5])
    @pytest.mark.parametrize("scale", ["product", "per_core"])
    def test_copies_are_scaled_beyond_the_source(self, n, scale):
        albert = tiny_albert(num_hidden_layers=2).double()
        plain = mp.from_albert(albert, 6, n=n)
        model = mp.from_albert(albert, 6, n=n, deep_init="copy_scaled", scale=scale)
        m = n - 1
        factor = 12**-0.5 if scale == "product" else 12 ** (-m / 4)
        for role in ROLES:
            whole = matrices(plain, role)
            expected = factor if role in SCALED else 1.0
            for layer, matrix in enumerate(matrices(model, role)):
                wanted = whole[layer] * (expected if layer >= 2 else 1.0)
                torch.testing.assert_close(matrix, wanted, rtol=1e-12, atol=1e-14)
            spec = model.config.quantization_config.plan.bank(role)
            one = core_factor(scale, 6, m) if role in SCALED else 1.0
            assert spec.depth_scale == pytest.approx(one)
            assert bool(spec.errors) == (role not in SCALED)
        for name, tensor in model.base_model.mpo["value"].tensors().items():
            if name == "central":
                assert torch.equal(tensor, plain.base_model.mpo["value"].central)

    def test_query_and_key_are_never_scaled(self):
        model = mp.from_albert(tiny_albert(), 8, preset="paper")
        for role in ROLES:
            assert (model.base_model.mpo[role].spec.depth_scale < 1.0) == (role in SCALED)

    def test_at_the_depth_of_the_source_nothing_is_deep(self):
        albert = tiny_albert().double()
        for depth in (3, 4):
            plain = mp.from_albert(albert, depth)
            model = mp.from_albert(albert, depth, preset="paper")
            assert torch.equal(logits(model), logits(plain))
            assert model.base_model.mpo["value"].spec == plain.base_model.mpo["value"].spec
        same = mp.from_albert(albert, 4, deep_init="copy_scaled")
        torch.testing.assert_close(logits(same), logits(albert), rtol=0, atol=1e-12)

    @pytest.mark.parametrize("threshold", [0, 1, 5, 6])
    def test_threshold(self, threshold):
        albert = tiny_albert().double()
        plain = mp.from_albert(albert, 6)
        model = mp.from_albert(albert, 6, deep_init="copy_scaled", threshold=threshold)
        for layer, (one, other) in enumerate(
            zip(matrices(model, "ffn_in"), matrices(plain, "ffn_in"), strict=True)
        ):
            assert torch.equal(one, other) == (layer < threshold)
        assert bool(mp.certificates(model)) == bool(mp.certificates(plain))
        names = [name for name in mp.certificates(model) if name.endswith(".ffn")]
        assert len(names) == threshold

    def test_xavier(self):
        albert = tiny_albert(hidden_size=64, intermediate_size=128, num_hidden_layers=1)
        torch.manual_seed(0)
        model = mp.from_albert(albert, 65, deep_init="xavier_scaled", scale="per_core")
        plain = mp.from_albert(albert, 1)
        for role in ROLES:
            factor = 130**-0.25 if role in SCALED else 1.0
            bank, source = model.base_model.mpo[role], plain.base_model.mpo[role]
            for name, tensor in bank.tensors().items():
                if not name.startswith("auxiliary"):
                    continue
                assert torch.equal(tensor[0], source.tensors()[name][0])
                left, i, j, right = tensor.shape[1:]
                deep = tensor[1:].detach()
                std = factor * math.sqrt(2 / (left * i + j * right))
                assert float(deep.std()) == pytest.approx(std, rel=0.08)
                assert abs(float(deep.mean())) < 0.1 * std
                assert not torch.equal(deep[0], deep[1])
        assert xavier_std((2, 3, 5, 7)) == pytest.approx(math.sqrt(2 / 41))

    def test_preset_and_options_beside_it(self):
        albert = tiny_albert()
        spec = mp.from_albert(albert, 8, preset="paper").base_model.mpo["value"].spec
        assert spec.depth_scale == pytest.approx(16**-0.25)
        spec = mp.from_albert(albert, 8, preset="paper", scale="product").base_model.mpo["value"]
        assert spec.spec.depth_scale == pytest.approx(16**-0.125)
        copies = mp.from_albert(albert, 8, preset="paper", deep_init="copy_scaled").double()
        first, last = matrices(copies, "value")[0], matrices(copies, "value")[-1]
        torch.testing.assert_close(last, first / 16, rtol=1e-5, atol=1e-8)

    def test_groups_of_the_source_and_of_the_result(self):
        albert = tiny_albert(num_hidden_groups=2).double()
        options = {"sharing": "groups:2", "share_bias": "groups:2", "share_norm": "groups:2"}
        plain = mp.from_albert(albert, 8, **options)
        model = mp.from_albert(albert, 8, deep_init="copy_scaled", **options)
        for layer, (one, other) in enumerate(
            zip(matrices(model, "value"), matrices(plain, "value"), strict=True)
        ):
            torch.testing.assert_close(one, other * (0.25 if layer >= 4 else 1.0))
        with pytest.warns(MPOBertWarning, match=r"groups \[1\] of the 2 groups"):
            mp.from_albert(albert, 1, deep_init="copy_scaled")

    def test_factors_are_stored_with_the_model(self, tmp_path):
        model = mp.from_albert(tiny_albert(), 6, deep_init="copy_scaled", adapter_rank=2)
        model.save_pretrained(tmp_path)
        loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
        assert torch.equal(logits(loaded), logits(model))
        plan = loaded.config.quantization_config.plan
        assert plan == model.config.quantization_config.plan
        assert mp.ConversionPlan.from_dict(plan.to_dict()) == plan
        assert "error" not in mp.describe(loaded).split("value")[1].splitlines()[0]
        merged = mp.merge(model)
        torch.testing.assert_close(logits(merged), logits(model), rtol=0, atol=1e-5)

    def test_shared_auxiliary_tensors_cannot_be_deep_and_not(self):
        albert = tiny_albert()
        with pytest.raises(ConfigError) as caught:
            mp.from_albert(albert, 6, sharing="albert", deep_init="copy_scaled")
        assert "needs auxiliary tensors of their own in the layers from 4 on" in str(caught.value)
        all_deep = mp.from_albert(albert, 6, sharing="albert", deep_init="copy_scaled", threshold=0)
        assert all_deep.base_model.mpo["value"].auxiliary_0.shape[0] == 1

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            (
                {"deep_init": "copy_scale"},
                "'xavier_scaled', got 'copy_scale'. Did you mean 'copy_scaled'",
            ),
            ({"deep_init": 3}, "deep_init must be one of"),
            (
                {"scale": "product"},
                "scale needs deep_init='copy_scaled' or 'xavier_scaled', got scale='product'",
            ),
            (
                {"deep_init": "copy_scaled", "scale": "core"},
                "scale must be 'product', 'per_core' or None, got 'core'",
            ),
            ({"scale": ["product"]}, "scale must be 'product', 'per_core' or None"),
            ({"threshold": -1}, "threshold must be an integer >= 0, got -1"),
            ({"threshold": True}, "threshold must be an integer >= 0, got True"),
            (
                {"n": 1, "deep_init": "copy_scaled"},
                "needs auxiliary tensors, got a single site for 'value'. Take two sites or more.",
            ),
            (
                {"targets": ["query", "value"], "deep_init": "copy_scaled"},
                "got 'attention_output' plain in 2 of the 2 layers from 4 on. Convert these",
            ),
            ({"preset": "text"}, "preset must be 'paper' or None, got 'text'"),
            ({"treshold": 3}, "Did you mean 'threshold'?"),
        ],
    )
    def test_refusals(self, options, text):
        with pytest.raises(ConfigError) as caught:
            mp.from_albert(tiny_albert(), 6, **options)
        assert text in str(caught.value)


class TestFresh:
    def build(self, **options):
        torch.manual_seed(0)
        return mp.build("mpobert-12", **{**TINY, "num_layers": 4, **options})

    @pytest.mark.parametrize("gauge", ["central", "left", "right"])
    @pytest.mark.parametrize("options", [{}, {"max_bond": 9}, {"n": 2}, {"n": 1}])
    def test_gauges_change_no_matrix(self, gauge, options):
        one, other = self.build(**options), self.build(gauge=gauge, **options)
        for role in ROLES:
            torch.testing.assert_close(
                torch.stack(matrices(one, role)),
                torch.stack(matrices(other, role)),
                rtol=1e-4,
                atol=1e-7,
            )

    @pytest.mark.parametrize(("gauge", "where"), [("left", -1), ("right", 0), ("central", 2)])
    def test_the_norm_sits_where_the_gauge_says(self, gauge, where):
        bank = self.build(gauge=gauge, branch_multiplier=1.0).base_model.mpo["query"]
        tensors = bank.tensors()
        cores = [tensors["central" if k == 2 else f"auxiliary_{k}"][0] for k in range(5)]
        norms = [float(core.detach().norm()) for core in cores]
        # An isometric core has the norm of the root of its outer bond.
        bonds = bank.spec.bond_dims
        isometric = [math.sqrt(max(bonds[k], bonds[k + 1])) for k in range(5)]
        whole = 0.02 * 64
        place = where % 5
        for k, norm in enumerate(norms):
            if k == place:
                assert norm == pytest.approx(whole, rel=0.1)
            elif gauge == "central" or (k != 2):
                bond = bonds[k + 1] if k < place else bonds[k]
                assert norm == pytest.approx(math.sqrt(bond), rel=1e-4)
            else:
                assert norm == pytest.approx(isometric[k], rel=0.1)

    def test_identity(self):
        model = self.build(gauge="identity", sharing="groups:2", branch_multiplier=1.0)
        stack = matrices(model, "query")
        assert torch.equal(stack[0], stack[1])
        assert not torch.equal(stack[1], stack[2])
        assert float(torch.stack(stack).std()) == pytest.approx(0.02, rel=0.1)
        with pytest.raises(ConfigError, match="gauge 'identity' must be exact"):
            self.build(gauge="identity", max_bond=3)
        with pytest.raises(ConfigError) as caught:
            self.build(gauge="identity", shapes={64: (16, 2, 2), 128: (16, 4, 2)})
        assert "must have full bonds on both sides of the central tensor" in str(caught.value)

    @pytest.mark.parametrize("n", [1, 2, 3, 5])
    def test_branch_multiplier(self, n):
        plain = self.build(n=n, branch_multiplier=1.0, adapter_rank=2)
        model = self.build(n=n, adapter_rank=2)
        half = self.build(n=n, adapter_rank=2, branch_multiplier=0.5)
        for role in ROLES:
            end = role in ("attention_output", "ffn_out")
            for other, factor in ((model, 0.25), (half, 0.5)):
                expected = matrices(plain, role)[1] * (factor if end else 1.0)
                torch.testing.assert_close(matrices(other, role)[1], expected, rtol=1e-4, atol=1e-8)
        spec = model.base_model.mpo["attention_output"].spec
        assert (spec.adapter_alpha, spec.adapter_scale) == (0.5, 0.25)
        assert model.base_model.mpo["query"].spec.adapter_scale == 1.0

    @pytest.mark.parametrize("scale", ["product", "per_core"])
    def test_scale(self, scale):
        plain, model = self.build(branch_multiplier=1.0), self.build(scale=scale)
        factor = 8**-0.5 if scale == "product" else 1 / 8
        for role in ROLES:
            expected = matrices(plain, role)[1] * (factor if role in SCALED else 1.0)
            torch.testing.assert_close(matrices(model, role)[1], expected, rtol=1e-4, atol=1e-8)

    @pytest.mark.parametrize("scale", [None, "product", "per_core"])
    def test_matrices_that_stay_plain_are_scaled_too(self, scale):
        for targets in (["query"], ["query", "ffn_out"]):
            model = self.build(targets=targets, scale=scale, head="none")
            factor = {None: 0.25, "product": 8**-0.5, "per_core": 1 / 8}[scale]
            for layer in model.encoder.albert_layer_groups:
                inner = layer.albert_layers[0]
                plain = {"ffn_in": inner.ffn, "value": inner.attention.value}
                plain |= {"attention_output": inner.attention.dense}
                for role, module in plain.items():
                    end = role == "attention_output" or scale is not None
                    expected = 0.02 * (factor if end else 1.0)
                    assert float(module.weight.detach().std()) == pytest.approx(expected, rel=0.1)
                expected = 0.02 * factor
                assert float(inner.ffn_output.weight.detach().std()) == pytest.approx(
                    expected, rel=0.1
                )

    def test_adapters_of_a_scaled_matrix_are_scaled_with_it(self):
        model = self.build(adapter_rank=2, adapter_alpha=6.0)
        bank = model.base_model.mpo["attention_output"]
        before = matrices(model, "attention_output")[2]
        with torch.no_grad():
            bank.adapter_up.fill_(1.0)
        low = bank.adapter_up[2] @ bank.adapter_down[2]
        expected = before + 0.25 * 3.0 * low.detach()
        torch.testing.assert_close(
            matrices(model, "attention_output")[2], expected, rtol=1e-4, atol=1e-7
        )

    def test_saved_and_merged(self, tmp_path):
        model = self.build(head="masked_lm", adapter_rank=2).eval()
        model.save_pretrained(tmp_path)
        loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
        assert torch.equal(logits(loaded), logits(model))
        assert loaded.base_model.mpo["ffn_out"].spec.depth_scale == pytest.approx(0.25**0.25)
        torch.testing.assert_close(logits(mp.merge(model)), logits(model), rtol=0, atol=1e-5)

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"scale": "cores"}, "scale must be 'product', 'per_core' or None, got 'cores'"),
            ({"branch_multiplier": 0}, "branch_multiplier must be a number above 0, got 0"),
            ({"branch_multiplier": "1/L"}, "branch_multiplier must be a number above 0, got '1/L'"),
            ({"branch_multiplier": True}, "branch_multiplier must be a number above 0, got True"),
            ({"branch_multiplier": math.inf}, "branch_multiplier must be a number above 0"),
            (
                {"scale": "product", "branch_multiplier": 0.5},
                "scale and branch_multiplier exclude each other, got 'product' and 0.5",
            ),
            ({"gauge": "up"}, "gauge must be"),
        ],
    )
    def test_refusals(self, options, text):
        with pytest.raises(ConfigError) as caught:
            self.build(**options)
        assert text in str(caught.value)
