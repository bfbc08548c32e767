"""MPOBERT on transformers: convert, share, deepen, account, save and load.

Importing the package registers the method 'mpo' with transformers, so that ``from_pretrained``
restores converted models.
"""

from __future__ import annotations

from mpobert_plugin.needs import require
from mpobert_plugin.submodules import keep_public_names
from mpobert_plugin.words import asks_for_words

# Set before by what loads the rest.
_whole: bool = globals().get("_whole", False) or not asks_for_words()

if _whole:
    # Before the imports that need them, so that the message says what to install.
    require("torch", "transformers")

    from mpobert_plugin import errors, families, peft, stability, train
    from mpobert_plugin.accounting import ParameterReport, account
    from mpobert_plugin.accumulate import accumulate
    from mpobert_plugin.bank import MPOBank
    from mpobert_plugin.baselines import baseline, baseline_config
    from mpobert_plugin.calibrate import input_metrics
    from mpobert_plugin.choice import ReconstructionPlan, plan_reconstruction, set_strategy
    from mpobert_plugin.config import MPOConfig
    from mpobert_plugin.convert import certificates, convert
    from mpobert_plugin.describe import assert_shared, describe
    from mpobert_plugin.embedding import MPOEmbedding, MPOHead
    from mpobert_plugin.fold import merge_adapters, unmerge_adapters
    from mpobert_plugin.freeze import freeze
    from mpobert_plugin.groups import param_groups
    from mpobert_plugin.init.albert import from_albert
    from mpobert_plugin.linear import MPOLinear
    from mpobert_plugin.merge import merge, merge_with_report
    from mpobert_plugin.norm import MPOLayerNorm, MPONormBank, MPORMSNorm
    from mpobert_plugin.persistence import load_state_dict, register
    from mpobert_plugin.plan import ConversionPlan
    from mpobert_plugin.planning import make_plan
    from mpobert_plugin.presets import build
    from mpobert_plugin.published import PresetRow, PresetsTable, presets_table
    from mpobert_plugin.report import ConversionReport, MatrixReport, report
    from mpobert_plugin.rounding import MergeReport
    from mpobert_plugin.runtime import set_cache
    from mpobert_plugin.sharing_groups import sharing_groups
    from mpobert_plugin.strategy import Strategy

    register()

keep_public_names(__name__)


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "ConversionPlan",
    "ConversionReport",
    "MPOBank",
    "MPOConfig",
    "MPOEmbedding",
    "MPOHead",
    "MPOLayerNorm",
    "MPOLinear",
    "MPONormBank",
    "MPORMSNorm",
    "MatrixReport",
    "MergeReport",
    "ParameterReport",
    "PresetRow",
    "PresetsTable",
    "account",
    "accumulate",
    "ReconstructionPlan",
    "Strategy",
    "assert_shared",
    "baseline",
    "baseline_config",
    "build",
    "certificates",
    "convert",
    "describe",
    "errors",
    "families",
    "freeze",
    "from_albert",
    "input_metrics",
    "load_state_dict",
    "make_plan",
    "merge",
    "merge_adapters",
    "merge_with_report",
    "param_groups",
    "peft",
    "presets_table",
    "plan_reconstruction",
    "report",
    "set_cache",
    "set_strategy",
    "sharing_groups",
    "stability",
    "train",
    "unmerge_adapters",
]
