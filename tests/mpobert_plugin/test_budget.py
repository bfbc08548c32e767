"""One budget for a whole model: kept, used up, counted as stored, or refused with the smallest."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from transformers import AutoModelForMaskedLM, BertModel, DistilBertConfig, DistilBertForMaskedLM

import mpobert_plugin as mp
import tensornet as tn
from mpobert_plugin.budget import within_budget
from mpobert_plugin.counting import planned_report
from mpobert_plugin.errors import ConfigError, MPOBertWarning, SharingError
from tests.mpobert_plugin.models import ids, logits, stir_adapters, tiny_albert, tiny_bert
from tests.mpobert_plugin.test_twin import check_twin


def two_layers(**sizes):
    return tiny_bert(num_hidden_layers=2, **sizes)


def plan_of(model):
    return model.config.quantization_config.plan


def one_step_more(model):
    """Return the fewest parameters that raising one bond of a model by one would take."""
    steps = []
    for spec in (*plan_of(model).banks, *plan_of(model).outside):
        layout = tn.MatrixLayout(spec.row_dims, spec.col_dims)
        full, sizes, bonds = layout.structural_bonds(), layout.site_dims, spec.bond_dims
        steps += [
            bonds[k - 1] * sizes[k - 1] + sizes[k] * bonds[k + 1]
            for k in range(1, len(sizes))
            if bonds[k] < full[k]
        ]
    return min(steps)


@pytest.mark.parametrize("ratio", [0.4, 0.6, 0.9])
def test_a_ratio_is_met_within_one_bond(ratio):
    model = tiny_bert()
    dense = mp.account(model).dense
    mp.convert(model, ratio=ratio)
    report = mp.account(model)
    assert report.dense == dense
    limit = int(ratio * dense)
    assert limit - one_step_more(model) < report.unique <= limit
    assert report.ratio <= ratio
    mp.assert_shared(model)


def test_max_params_is_the_same_budget_in_another_unit():
    one, two = two_layers(), two_layers()
    number = int(0.6 * mp.account(one).dense)
    mp.convert(one, ratio=0.6)
    mp.convert(two, max_params=number)
    assert plan_of(one) == plan_of(two)
    assert torch.equal(logits(one), logits(two))


def test_more_budget_means_less_error():
    errors = []
    for ratio in (0.5, 0.7, 0.9):
        model = mp.convert(two_layers(), ratio=ratio)
        banks = plan_of(model).banks
        errors.append(sum(e * e for spec in banks for e in spec.errors))
    assert errors == sorted(errors, reverse=True)


def test_the_whole_budget_changes_nothing():
    model = two_layers()
    before = logits(model)
    with pytest.warns(
        MPOBertWarning, match=r"ratio=1 allows .* nothing has to become smaller\. Ask"
    ):
        mp.convert(model, ratio=1.0)
    assert torch.equal(logits(model), before)
    assert plan_of(model).banks == ()
    assert mp.account(model).ratio == 1.0
    note = r"leaves every matrix plain. Ask for max_params= below [\d,]+, ratio= below 1\."
    assert re.search(note, str(mp.report(model)))


def test_a_budget_that_an_albert_keeps_already_is_told_with_its_numbers():
    plain = tiny_albert()
    counts = mp.account(plain)
    stored, dense = counts.unique, counts.dense
    assert stored == 12_035
    assert dense == 37_667
    with pytest.warns(MPOBertWarning) as caught:
        model = mp.convert(tiny_albert(), ratio=0.5, n=3)
    assert str(caught[0].message) == (
        "ratio=0.5 allows 18,833 parameters, and 12,035 are stored without any conversion, so "
        "that nothing has to become smaller. A ratio counts 37,667 for the same model with a "
        "layer of its own per layer, of which the model as it is stores 0.3195. Ask for "
        "max_params= below 12,035 or ratio= below 0.31951."
    )
    assert caught[0].filename == __file__
    note = "leaves every matrix plain. Ask for max_params= below 12,035, ratio= below 0.31951."
    assert mp.report(model).note.endswith(note)
    with pytest.warns(MPOBertWarning, match="max_params=12,035 allows 12,035 parameters"):
        mp.convert(tiny_albert(), max_params=stored)
    # What is asked for is what helps.
    for options in ({"max_params": stored - 1}, {"ratio": 0.31951}):
        assert mp.account(mp.convert(tiny_albert(), **options)).unique < stored


def test_layers_that_are_added_on_purpose_may_use_up_a_budget():
    with pytest.warns(MPOBertWarning, match="ratio=0.5 allows"):
        mp.convert(tiny_albert(), ratio=0.5, sharing="all")
    mp.from_albert(tiny_albert(), 4, ratio=0.5)
    dense = mp.account(tiny_albert()).dense
    with pytest.warns(MPOBertWarning, match=f"{dense:,} are stored without any") as caught:
        mp.from_albert(tiny_albert(), 4, ratio=1.0, share_bias=False, share_norm=False)
    assert caught[0].filename == __file__


def test_a_model_of_plain_matrices_alone_is_saved_and_loaded(tmp_path):
    with pytest.warns(MPOBertWarning, match="nothing has to become smaller"):
        model = mp.convert(two_layers(), ratio=1.0)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(logits(loaded), logits(model))


def test_matrices_stay_plain_where_that_is_smaller():
    model = mp.convert(tiny_bert(), ratio=0.9)
    plan = plan_of(model)
    read = {(spec.role, layer) for spec in plan.banks for layer in spec.layer_numbers}
    assert 0 < len(read) < 24
    plain = [type(module) for module in model.bert.encoder.modules()].count(torch.nn.Linear)
    assert plain == 24 - len(read)


def test_small_matrices_count_as_much_as_large_ones():
    model = two_layers()
    with torch.no_grad():
        for layer in model.bert.encoder.layer:
            layer.attention.self.query.weight.mul_(1e-3)
    other = mp.convert(copy.deepcopy(model), ratio=0.6)
    plain = mp.convert(two_layers(), ratio=0.6)
    bonds = [(spec.name, spec.bond_dims) for spec in plan_of(other).banks]
    assert bonds == [(spec.name, spec.bond_dims) for spec in plan_of(plain).banks]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sharing": "groups:2", "fit": "mean"},
        {"sharing": "groups:2", "fit": "joint"},
        {"sharing": "albert", "fit": "first"},
        {"sharing": {"query": "all", "ffn_in": [[0, 3], [1], [2]]}, "fit": "joint"},
        {"sharing": lambda layer, role: layer % 2, "fit": "mean"},
        {"adapter_rank": 2},
        {"share_norm": "all", "fit": "mean"},
        {"sharing": "groups:2", "share_bias": "groups:2", "fit": "mean"},
        {"targets": ["ffn_in", "ffn_out", "value"]},
        {"targets": ["query", "ffn_in", "ffn_out", "embedding"]},
        {"n": 3},
        {"gauge": "central"},
    ],
    ids=lambda options: " ".join(options) or "none",
)
def test_every_combination_keeps_the_budget_and_equals_its_twin(options):
    model = tiny_bert().double()
    dense = mp.account(model).dense
    mp.convert(model, ratio=0.85, **options)
    report = mp.account(model)
    assert report.unique <= int(0.85 * dense)
    assert report.unique == sum(parameter.numel() for parameter in model.parameters())
    assert planned_report(tiny_bert(), plan_of(model)).unique == report.unique
    mp.assert_shared(model)
    stir_adapters(model)
    if "embedding" not in options.get("targets", ()):
        check_twin(model)


def test_layers_that_share_stay_together():
    model = mp.convert(tiny_bert(), ratio=0.5, sharing=[[0, 3], [1, 2]], fit="mean")
    for spec in plan_of(model).banks:
        assert spec.layer_numbers in ((0, 3), (1, 2), (0, 1, 2, 3))


def test_equal_bonds_are_one_bank():
    model = tiny_bert()
    layers = model.bert.encoder.layer
    with torch.no_grad():
        for layer in layers[1:]:
            layer.load_state_dict(layers[0].state_dict())
    mp.convert(model, ratio=0.5)
    names = [spec.name for spec in plan_of(model).banks]
    assert len(names) <= 12
    assert all(len(plan_of(model).banks_of_role(role)) <= 2 for role in plan_of(model).roles()[:6])


@pytest.mark.parametrize("ratio", [0.12, 0.2, 0.29])
def test_an_albert_counts_its_layers_once(ratio):
    model = tiny_albert()
    dense = mp.account(model).dense
    mp.convert(model, ratio=ratio)
    assert mp.account(model).unique <= int(ratio * dense)


@pytest.mark.parametrize("sharing", ["none", "all", "groups:2", "albert"])
def test_an_albert_with_a_module_for_each_layer(sharing):
    model = tiny_albert().double()
    dense = mp.account(model).dense
    # More than the one layer of the ALBERT takes, which is told.
    with pytest.warns(MPOBertWarning, match="nothing has to become smaller"):
        mp.convert(model, ratio=0.5, sharing=sharing)
    assert mp.account(model).unique <= int(0.5 * dense)
    assert mp.account(model).unique == sum(p.numel() for p in model.parameters())
    check_twin(model)


def test_deepening_an_albert_on_a_budget():
    model = mp.from_albert(tiny_albert(), num_layers=6, ratio=0.4)
    assert mp.account(model).ratio <= 0.4
    assert model.config.num_hidden_layers == 6


def test_another_family():
    torch.manual_seed(0)
    config = DistilBertConfig(vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=64)
    model = DistilBertForMaskedLM(config).eval()
    mp.convert(model, ratio=0.8)
    assert 0.75 < mp.account(model).ratio <= 0.8


def test_reload_is_exact(tmp_path):
    model = mp.convert(two_layers(), ratio=0.6)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(logits(loaded), logits(model))
    assert loaded.config.quantization_config == model.config.quantization_config
    assert loaded.config.quantization_config.ratio == 0.6


def test_converting_on_loading(tmp_path):
    two_layers().save_pretrained(tmp_path)
    config = mp.MPOConfig(ratio=0.7)
    model = AutoModelForMaskedLM.from_pretrained(tmp_path, quantization_config=config)
    assert mp.account(model).ratio <= 0.7


def test_calibration_lowers_the_error_of_the_outputs():
    def outputs(calibrated):
        model = two_layers()
        with torch.no_grad():
            # Inputs with few strong directions, as real ones have.
            model.bert.embeddings.LayerNorm.weight.mul_(torch.linspace(4.0, 0.02, 32))
        plain = copy.deepcopy(model)
        mp.convert(model, ratio=0.7, n=2, calibration=[ids(8)] if calibrated else None)
        one, two = (m.bert(ids(8)).last_hidden_state for m in (model, plain))
        return float((one - two).detach().norm())

    assert outputs(True) < outputs(False)


def test_calibration_keeps_the_budget():
    model = two_layers()
    dense = mp.account(model).dense
    mp.convert(model, ratio=0.95, n=3, targets=["query"], calibration=[ids()])
    assert mp.account(model).unique <= int(0.95 * dense)
    assert all(spec.output_errors for spec in plan_of(model).banks)


def test_the_plan_alone_computes_no_matrix():
    model = two_layers()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config = mp.MPOConfig(ratio=0.6)
    plan = within_budget(model, mp.make_plan(model, config), config)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    mp.convert(model, config)
    assert [spec.bond_dims for spec in plan.banks] == [
        spec.bond_dims for spec in plan_of(model).banks
    ]


def refused(text, error=ConfigError, model=None, **options):
    model = two_layers() if model is None else model
    before = logits(model)
    with pytest.raises(error, match=text):
        mp.convert(model, **options)
    assert torch.equal(logits(model), before)
    assert not hasattr(model.base_model, "mpo")


def test_a_budget_below_the_smallest_tells_the_smallest():
    plain = two_layers()
    with pytest.raises(ConfigError, match=r"max_params must be at least [\d,]+ for this") as caught:
        mp.convert(plain, max_params=100)
    least = int(re.search(r"at least ([\d,]+)", str(caught.value))[1].replace(",", ""))
    refused(f"at least {least:,}", max_params=least - 1)
    assert mp.account(mp.convert(two_layers(), max_params=least)).unique == least
    with pytest.raises(ConfigError, match=r"ratio must be at least ([\d.]+) \(") as caught:
        mp.convert(plain, ratio=0.01)
    smallest = float(re.search(r"at least ([\d.]+)", str(caught.value))[1])
    assert mp.account(mp.convert(two_layers(), ratio=smallest)).unique == least


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ratio": 0.0}, r"ratio must be a number in \(0, 1\], got 0.0"),
        ({"ratio": 1.2}, r"ratio must be a number in \(0, 1\], got 1.2"),
        ({"ratio": True}, r"ratio must be a number in \(0, 1\], got True"),
        ({"ratio": float("nan")}, r"ratio must be a number in \(0, 1\], got nan"),
        ({"ratio": "half"}, r"ratio must be a number in \(0, 1\], got 'half'"),
        ({"max_params": 0}, "max_params must be an integer >= 1, got 0"),
        ({"max_params": 2.5}, "max_params must be an integer >= 1, got 2.5"),
        (
            {"ratio": 0.5, "max_params": 9},
            "one budget in two units, got ratio=0.5 and max_params=9",
        ),
        ({"ratio": 0.5, "max_bond": 4}, "ratio chooses the bonds of all matrices, got max_bond=4"),
        ({"max_params": 9, "rtol": 0.1}, "max_params chooses the bonds .* got rtol=0.1"),
        ({"ratio": 0.5, "gauge": "identity"}, "gauge 'identity' must be exact: leave out ratio"),
    ],
)
def test_impossible_budgets(options, text):
    refused(text, **options)


def test_biases_in_common_across_banks_are_refused():
    text = r"share_bias must not join layers of 'query' .* got layers \[0, 1\]"
    refused(text, SharingError, ratio=0.6, share_bias="all", fit="mean")


def test_layers_that_differ_need_a_fit_here_too():
    refused("must join equal tensors unless fit says how", SharingError, ratio=0.6, sharing="all")


def test_fresh_weights_have_no_budget():
    with pytest.raises(ConfigError, match="A budget goes by the weights, which are fresh"):
        mp.build("mpobert-12", head="none", device="meta", ratio=0.5)


def test_a_frozen_model_and_other_element_types():
    model = tiny_bert(BertModel).to(torch.bfloat16).requires_grad_(False)
    mp.convert(model, ratio=0.6)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert not any(p.requires_grad for p in model.mpo.parameters())


@pytest.mark.parametrize("calibrated", [False, True])
def test_budgets_give_no_matrix_up(calibrated):
    calibration = [ids()] if calibrated else None
    model = mp.convert(two_layers(), ratio=0.45, n=5, calibration=calibration)
    assert all(min(spec.bond_dims[1:-1]) > 1 for spec in plan_of(model).banks)
