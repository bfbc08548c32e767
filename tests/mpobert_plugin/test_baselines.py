"""Baselines at equal parameters: what they are, that they match, and what they are better than."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BertModel

import mpobert_plugin as mp
from mpobert_plugin.baselines import near_ranks
from mpobert_plugin.errors import ConfigError, TargetError
from tests.mpobert_plugin.models import ids, logits, tiny_albert, tiny_bert
from tests.mpobert_plugin.test_twin import check_twin

NAMES = ["low_rank", "whitened", "shared_lora"]


def model(**sizes):
    return tiny_bert(**{"num_hidden_layers": 2, "vocab_size": 800, **sizes})


def batches_for(name):
    return {"calibration": [ids(8)]} if name == "whitened" else {}


@pytest.mark.parametrize("name", NAMES)
def test_the_number_is_matched_within_one_percent(name):
    mpo = mp.convert(model(), sharing="all", fit="mean", max_bond=20)
    wanted = mp.account(mpo).unique
    made = mp.baseline(name, model(), match_parameters=mpo, **batches_for(name))
    assert abs(mp.account(made).unique - wanted) <= 0.01 * wanted
    mp.assert_shared(made)


@pytest.mark.parametrize(
    "options",
    [
        {"sharing": "all", "fit": "mean", "n": 3},
        {"max_bond": 10},
        {"ratio": 0.85},
        {"max_params": 40_000},
        {"sharing": "groups:1", "fit": "joint", "adapter_rank": 1, "max_bond": 8},
    ],
    ids=str,
)
def test_a_configuration_is_matched_without_being_made(options):
    plain = model()
    made = mp.baseline("low_rank", model(), match_parameters=mp.MPOConfig(**options))
    wanted = mp.account(mp.convert(plain, **options)).unique
    found = mp.account(made).unique
    assert abs(found - wanted) <= 0.01 * wanted


def test_low_rank_is_a_truncated_svd():
    plain = model().double()
    made = mp.baseline("low_rank", copy.deepcopy(plain), match_parameters=35_000)
    seen = 0
    for spec in made.config.quantization_config.plan.banks:
        assert spec.row_dims[1] == spec.col_dims[0] == 1
        bank = made.bert.mpo[spec.name]
        for slot, layer in enumerate(spec.layer_numbers):
            path = mp.families.BERT.matrices[spec.role]
            W = plain.bert.encoder.layer[layer].get_submodule(path).weight.detach()
            u, s, v = torch.linalg.svd(W, full_matrices=False)
            r = spec.bond_dims[1]
            best = (u[:, :r] * s[:r]) @ v[:r]
            torch.testing.assert_close(bank.weights()[slot].detach(), best, rtol=0, atol=1e-10)
            seen += 1
    assert seen


def test_whitened_is_the_best_rank_in_the_metric():
    plain = model().double()
    given_ids = [ids(8)]
    metrics = mp.input_metrics(plain, given_ids, ["ffn_out"])["ffn_out"]
    made = mp.baseline(
        "whitened", copy.deepcopy(plain), match_parameters=36_000, calibration=given_ids
    )
    specs = made.config.quantization_config.plan.banks_of_role("ffn_out")
    assert specs
    for spec in specs:
        for slot, layer in enumerate(spec.layer_numbers):
            W = plain.bert.encoder.layer[layer].output.dense.weight.detach()
            values, vectors = torch.linalg.eigh(metrics[layer])
            root = (vectors * values.clamp_min(0).sqrt()) @ vectors.T
            tail = torch.linalg.svdvals(W @ root)[spec.bond_dims[1] :]
            made_W = made.bert.mpo[spec.name].weights()[slot].detach()
            error = torch.linalg.vector_norm((W - made_W) @ root)
            assert float(error) <= float(tail.norm()) * (1 + 1e-3) + 1e-9


def test_one_shared_matrix_and_a_correction_for_each_layer():
    plain = model()
    made = mp.baseline("shared_lora", copy.deepcopy(plain), match_parameters=41_500)
    spec = made.config.quantization_config.plan.bank("query")
    assert (spec.central, spec.auxiliary, spec.row_dims) == ((0, 0), (0, 0), (32,))
    bank, layers = made.bert.mpo["query"], plain.bert.encoder.layer
    own = torch.stack([layer.attention.self.query.weight.detach() for layer in layers])
    torch.testing.assert_close(bank.central[0, 0, :, :, 0], own.mean(0), rtol=0, atol=1e-6)
    rank = spec.adapter_rank
    assert rank >= 1
    for slot in range(2):
        tail = torch.linalg.svdvals(own[slot] - own.mean(0))[rank:]
        error = (bank.weights()[slot].detach() - own[slot]).norm()
        assert float(error) == pytest.approx(float(tail.norm()), rel=1e-4)
    check_twin(made.double())


@pytest.mark.parametrize("wanted", [15_900, 17_000, 18_000, 18_050, 18_500])
def test_ranks_by_role_match_where_one_rank_is_too_coarse(wanted):
    # One rank more for all roles is 896 parameters, about five percent.
    plain = tiny_bert(num_hidden_layers=2)
    made = mp.baseline("shared_lora", copy.deepcopy(plain), match_parameters=wanted)
    assert abs(mp.account(made).unique - wanted) <= 0.01 * wanted
    banks = made.config.quantization_config.plan.banks
    ranks = [spec.adapter_rank for spec in banks]
    assert max(ranks) - min(ranks) == 1
    again = mp.baseline_config("shared_lora", plain, match_parameters=wanted)
    assert [again.adapter_rank.get(spec.role, 0) for spec in banks] == ranks
    check_twin(made.double())


def test_a_number_of_one_rank_for_all_gets_that():
    plain = tiny_bert(num_hidden_layers=2)
    least, step = 14_691, 896
    for rank in (0, 1, 4, 32):
        config = mp.baseline_config("shared_lora", plain, match_parameters=least + rank * step)
        assert config.adapter_rank == rank


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 9)), min_size=1, max_size=6),
    st.integers(-5, 900),
)
def test_near_ranks_are_what_they_add_up_to(sizes, room):
    steps = {str(k): step for k, (step, _) in enumerate(sizes)}
    most = {str(k): cap for k, (_, cap) in enumerate(sizes)}
    found = near_ranks(room, steps, most)
    for total, ranks in found.items():
        assert total == sum(steps[role] * rank for role, rank in ranks.items())
        assert all(0 <= rank <= most[role] for role, rank in ranks.items())
    # No further off than half of the largest step, unless no ranks reach that far.
    inside = min(max(room, 0), sum(steps[role] * most[role] for role in steps))
    assert min(abs(total - inside) for total in found) <= max(steps.values()) / 2


def test_targets_alone_are_changed():
    made = mp.baseline("low_rank", model(), match_parameters=44_000, targets=["ffn_in"])
    assert {spec.role for spec in made.config.quantization_config.plan.banks} == {"ffn_in"}


def test_an_albert_keeps_its_one_layer():
    plain = tiny_albert()
    wanted = int(0.9 * mp.account(plain).unique)
    made = mp.baseline("low_rank", plain, match_parameters=wanted)
    assert abs(mp.account(made).unique - wanted) <= 0.01 * wanted
    assert made.config.num_hidden_groups == 1


def refused(text, error=ConfigError, name="low_rank", **options):
    plain = model()
    before = logits(plain)
    with pytest.raises(error, match=text):
        mp.baseline(name, plain, **options)
    assert torch.equal(logits(plain), before)
    assert not hasattr(plain.base_model, "mpo")


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ("many", "a converted model, an MPOConfig or a number of parameters >= 1, got 'many'"),
        (0, "number of parameters >= 1, got 0"),
        (2.5, "number of parameters >= 1, got 2.5"),
        (True, "number of parameters >= 1, got True"),
        (mp.MPOConfig(rtol=0.1), "rtol=0.1 shows it only when matrices are decomposed"),
        (3, "max_params must be at least [0-9,]+ for this model"),
    ],
    ids=str,
)
def test_numbers_that_cannot_be_matched(wrong, text):
    refused(text, match_parameters=wrong)


def test_low_rank_never_needs_more_than_the_plain_model():
    refused("must be at most 46,016 for low rank, .* got 60,000", match_parameters=60_000)


def test_a_plain_model_has_nothing_to_match():
    refused("got a plain BertForMaskedLM. Convert it first", match_parameters=model())


def test_unknown_names_and_targets():
    refused("Did you mean 'low_rank'", name="lowrank", match_parameters=9)
    refused("querry", TargetError, match_parameters=41_000, targets=["querry"])


def test_whitening_needs_batches():
    refused("'whitened' needs calibration=", name="whitened", match_parameters=41_000)


def test_ranks_that_do_not_come_near_tell_the_nearest():
    refused(
        r"within 0.05% of, got 37,888. Near it are 37,824 \(rank 0\), 37,952 \(ranks 0 to 1\), ",
        name="shared_lora",
        match_parameters=37_888,
        tolerance=0.0005,
    )


def test_a_base_model_and_saving(tmp_path):
    plain = tiny_bert(BertModel, num_hidden_layers=2)
    made = mp.baseline("low_rank", plain, match_parameters=mp.account(plain).unique - 3_000)
    made.save_pretrained(tmp_path)
    loaded = BertModel.from_pretrained(tmp_path)
    assert torch.equal(logits(loaded), logits(made))
