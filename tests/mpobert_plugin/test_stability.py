"""measure_update and sweep: what one step does to the output, with everything restored."""

from __future__ import annotations

import copy
import json
import math

import pytest
import torch
from transformers import AlbertModel, GPT2Config, GPT2LMHeadModel
from typer.testing import CliRunner

import mpobert_plugin as mp
from mpobert_plugin.cli import app
from mpobert_plugin.errors import ConfigError, ModelTypeError
from mpobert_plugin.kinds import kinds_of
from mpobert_plugin.stability import Sweep, measure_update, sweep
from mpobert_plugin.stability_plot import updates_by_depth
from mpobert_plugin.update import SPLIT
from tests.mpobert_plugin.models import ids, stir_adapters, tiny_albert, tiny_bert

SMALL = {"depths": (3, 12), "sites": [3], "seeds": [0], "hidden_size": 16}


def batch():
    return {"input_ids": ids(), "labels": ids()}


def model(rank=2):
    torch.manual_seed(0)
    made = mp.from_albert(tiny_albert(), 4, adapter_rank=rank).double()
    stir_adapters(made)
    return made


def state_of(made, optimizer):
    return (
        {name: (id(p), p.detach().clone()) for name, p in made.named_parameters()},
        {name: p.grad for name, p in made.named_parameters()},
        [module.training for module in made.modules()],
        copy.deepcopy(optimizer.state_dict()),
        torch.random.get_rng_state(),
        dict(made.base_model._forward_hooks),
    )


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return one == other or one is other


OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, momentum=0.9),
    "adam": torch.optim.AdamW,
    "lamb": mp.train.Lamb,
}


class TestMeasureUpdate:
    @pytest.mark.parametrize("name", OPTIMIZERS)
    @pytest.mark.parametrize("training", [True, False])
    def test_everything_is_restored_bit_for_bit(self, name, training):
        made = model().train(training)
        made.albert.encoder.eval()
        optimizer = OPTIMIZERS[name](mp.param_groups(made, name, lr=1e-3))
        made(**batch()).loss.backward()
        optimizer.step()  # with moments in it
        gradients = {n: p.grad for n, p in made.named_parameters()}
        before = state_of(made, optimizer)
        update = measure_update(made, batch(), optimizer)
        assert same(state_of(made, optimizer), before)
        assert all(p.grad is gradients[n] for n, p in made.named_parameters())
        assert update.total > 0.0
        assert measure_update(made, batch(), optimizer) == update

    def test_a_fresh_optimizer_stays_without_state(self):
        made = model()
        optimizer = torch.optim.Adam(made.parameters(), lr=1e-3)
        measure_update(made, batch(), optimizer)
        assert not optimizer.state
        assert all(p.grad is None for p in made.parameters())

    @pytest.mark.parametrize("kind", [*SPLIT, "embedding"])
    def test_a_part_is_what_that_part_of_the_step_does(self, kind):
        made = model()
        optimizer = torch.optim.SGD(made.parameters(), lr=1e-2)
        update = measure_update(made, batch(), optimizer)
        twin = copy.deepcopy(made)
        loss = twin(**batch()).loss
        loss.backward()
        assert update.loss == float(loss.detach())
        start = twin.albert(ids())[0].detach()
        with torch.no_grad():
            for parameter in kinds_of(twin)[kind].values():
                parameter -= 1e-2 * parameter.grad
            moved = twin.albert(ids())[0]
        expected = float((moved - start).norm() / start.norm())
        assert update.by_kind()[kind] == pytest.approx(expected, rel=1e-9)
        assert update.output_norm == pytest.approx(float(start.norm()), rel=1e-12)

    def test_small_parts_add_up(self):
        made = model()
        update = measure_update(made, batch(), torch.optim.SGD(made.parameters(), lr=1e-6))
        parts = update.by_kind().values()
        assert max(parts) <= 1.01 * update.total + 1e-12 or update.total <= sum(parts)
        assert update.total <= 1.001 * sum(parts)

    def test_kinds_that_do_not_move(self):
        made = model()
        mp.freeze(made, "adapters")
        update = measure_update(made, batch(), torch.optim.SGD(made.parameters(), lr=1e-2))
        assert update.adapter == update.total > 0.0
        assert update.central == update.auxiliary == update.bias == update.norm == 0.0
        assert str(update).splitlines()[1].split()[0] == "adapter"
        assert json.loads(json.dumps(update.to_dict()))["adapter"] == update.adapter

    def test_plain_models_too(self):
        plain = tiny_bert()
        update = measure_update(plain, batch(), torch.optim.SGD(plain.parameters(), lr=1e-2))
        assert update.central == 0.0
        assert update.others["dense"] > 0.0

    def test_causal_models_and_several_banks_for_a_role(self):
        torch.manual_seed(0)
        sizes = {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 99, "n_positions": 32}
        model = GPT2LMHeadModel(GPT2Config(**sizes)).double()
        mp.convert(model, n=3, max_bond=6)
        optimizer = mp.train.Lamb(mp.param_groups(model, "lamb", lr=1e-3))
        before = state_of(model, optimizer)
        update = measure_update(model, batch(), optimizer)
        assert min(update.central, update.auxiliary, update.norm, update.total) > 0.0
        assert same(state_of(model, optimizer), before)

    def test_what_was_raised_leaves_everything(self):
        made = model()

        class Broken(torch.optim.SGD):
            def step(self, closure=None):
                super().step()
                raise RuntimeError("broken")

        optimizer = Broken(made.parameters(), lr=1.0)
        before = state_of(made, optimizer)
        with pytest.raises(RuntimeError, match="broken"):
            measure_update(made, batch(), optimizer)
        assert same(state_of(made, optimizer), before)

    def test_refusals(self):
        made = model()
        optimizer = torch.optim.SGD(made.parameters(), lr=1.0)
        with pytest.raises(ConfigError, match=r"must be a torch.optim.Optimizer, got str"):
            measure_update(made, batch(), "adam")
        other = torch.optim.SGD(model().parameters(), lr=1.0)
        with pytest.raises(ConfigError, match="parameters of this model alone, got 62 of another"):
            measure_update(made, batch(), other)
        with pytest.raises(ConfigError, match=r"must map the arguments .* got Tensor"):
            measure_update(made, ids(), optimizer)
        with pytest.raises(ConfigError, match="must give a loss, got none from AlbertForMaskedLM"):
            measure_update(made, {"input_ids": ids()}, optimizer)
        with torch.no_grad():
            next(made.parameters()).fill_(math.inf)
        with pytest.raises(ConfigError, match="loss of the batch must be finite, got nan"):
            measure_update(made, batch(), optimizer)
        with pytest.raises(ModelTypeError):
            measure_update(torch.nn.Linear(2, 2), batch(), optimizer)
        empty = mp.build("mpobert-12", device="meta")
        with pytest.raises(ConfigError, match="got parameters on the meta device"):
            measure_update(empty, batch(), torch.optim.SGD(empty.parameters(), lr=1.0))
        headless = tiny_albert(AlbertModel)
        with pytest.raises(ConfigError, match="Use a model with a head"):
            measure_update(
                headless, {"input_ids": ids()}, torch.optim.SGD(headless.parameters(), lr=1.0)
            )


class TestSweep:
    def test_defaults_are_flat_and_copies_are_not(self):
        small = {**SMALL, "optimizers": ["adam", "lamb"]}
        flat = sweep(**small)
        steep = sweep(**small, start="copies", depth_rates=False)
        for one, other in zip(flat.exponents(), steep.exponents(), strict=True):
            assert (one.optimizer, one.kind) == (other.optimizer, other.kind)
            if one.kind == "total":
                assert abs(one.value) < 0.2
            if one.kind in ("bias", "norm"):
                assert abs(one.value) < 0.2
                assert other.value > 0.4

    def test_rates_by_depth_are_needed_for_biases_and_norms(self):
        found = sweep(**SMALL, depth_rates=False)
        table = {(e.optimizer, e.kind): e.value for e in found.exponents()}
        assert table["sgd", "norm"] == pytest.approx(2.0, abs=0.3)
        assert table["adam", "norm"] == pytest.approx(1.0, abs=0.3)
        assert table["lamb", "norm"] == pytest.approx(1.0, abs=0.3)
        assert abs(table["lamb", "auxiliary"]) < 0.3

    def test_the_same_numbers_each_time(self):
        torch.manual_seed(3)
        small = {**SMALL, "depths": (2, 3), "optimizers": ["adam"]}
        seen = []
        first = sweep(**small, progress=lambda done, of: seen.append((done, of)))
        assert first == sweep(**small)
        assert seen == [(1, 2), (2, 2)]
        assert first.cases == [("adam", 3)]
        assert set(first.curve("adam", 3, "total")) == {2, 3}
        stored = json.loads(json.dumps(first.to_dict()))
        assert stored["exponents"][0]["value"] == first.exponents()[0].value
        assert stored["measured"][0]["update"]["total"] == first.measured[0].update.total
        lines = str(first).splitlines()
        assert lines[0].split()[-6:] == ["total", *SPLIT]
        assert lines[1].startswith("adam  3 sites")

    def test_slopes(self):
        rows = sweep(depths=(2, 4), optimizers=["sgd"], sites=[3], seeds=[0, 1], hidden_size=8)
        curve = rows.curve("sgd", 3, "total")
        slopes = [math.log(curve[4][k] / curve[2][k]) / math.log(2) for k in (0, 1)]
        total = rows.exponents()[0]
        assert total.value == pytest.approx(sum(slopes) / 2)
        assert total.deviation == pytest.approx(abs(slopes[0] - slopes[1]) / math.sqrt(2))

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"depths": [6]}, "depths must be two at least to fit an exponent, got [6]"),
            ({"depths": []}, "depths must have an entry, got none"),
            ({"depths": [6, 0]}, "each of depths must be an integer >= 1, got 0"),
            ({"seeds": []}, "seeds must have an entry, got none"),
            ({"sites": ["3"]}, "each of sites must be an integer >= 1, got '3'"),
            ({"optimizers": ["adm"]}, "got 'adm'. Did you mean 'adam'?"),
            ({"optimizers": []}, "optimizers must have an entry, got none"),
            ({"start": "warm"}, "start must be 'fresh' or 'copies', got 'warm'"),
            ({"scale": "cores"}, "scale must be 'product', 'per_core' or None, got 'cores'"),
            (
                {"start": "copies", "branch_multiplier": 0.5},
                "branch_multiplier must be left out with start='copies'",
            ),
            ({"hidden_size": 18}, "hidden_size must be a multiple of 4, got 18"),
            ({"adapter_rank": -1}, "adapter_rank must be an integer >= 0, got -1"),
        ],
    )
    def test_refusals(self, options, text):
        with pytest.raises(ConfigError) as caught:
            sweep(**options)
        assert text in str(caught.value)

    @pytest.mark.nightly
    def test_default_exponents_over_6_to_96_layers(self):
        for exponent in sweep().exponents():
            if exponent.kind in ("total", "bias", "norm"):
                assert abs(exponent.value) < 0.1, exponent
            assert exponent.value < 0.1 + exponent.deviation, exponent


class TestPicture:
    def test_lines_and_labels(self):
        found = sweep(depths=(2, 4), optimizers=["sgd", "lamb"], sites=[3], seeds=[0])
        figure = updates_by_depth(found)
        assert [axes.get_title(loc="left") for axes in figure.axes] == [
            "sgd, 3 cores",
            "lamb, 3 cores",
        ]
        labels = [line.get_label() for line in figure.axes[1].lines]
        assert [label.split()[0] for label in labels] == ["total", *SPLIT]
        total = figure.axes[1].lines[0]
        assert list(total.get_xdata()) == [2, 4]
        assert list(total.get_ydata()) == [
            sizes[0] for sizes in found.curve("lamb", 3, "total").values()
        ]

    def test_nothing_to_draw(self):
        with pytest.raises(ConfigError, match="sweep must have measurements, got none"):
            updates_by_depth(Sweep({}, ()))


class TestCommand:
    SHORT = ("stability", "--depth=2", "--depth=4", "--optimizer=lamb", "--sites=3", "--seeds=1")

    def run(self, *options, code=0):
        env = {"COLUMNS": "80", "NO_COLOR": "1"}
        result = CliRunner().invoke(app, [*self.SHORT, "--hidden-size=8", *options], env=env)
        assert result.exit_code == code, result.output
        return result

    def test_table_json_and_picture(self, tmp_path):
        picture = tmp_path / "depth.svg"
        result = self.run("--plot", str(picture))
        assert "lamb, 3 " in result.stdout
        assert "auxiliary" in result.stdout
        assert "Exponent of the depth" in result.stdout
        assert picture.read_text().startswith("<?xml")
        assert "is there already" in self.run("--plot", str(picture), code=2).stderr
        assert not [path for path in tmp_path.iterdir() if path != picture]
        stored = json.loads(self.run("--json").stdout)
        assert [row["depth"] for row in stored["measured"]] == [2, 4]

    def test_errors_are_one_line(self):
        result = self.run("--scale=core", code=2)
        assert result.stderr.startswith("Error: --scale must be 'product', 'per_core' or None")
        assert len(result.stderr.splitlines()) == 1
