"""Tensor-network decomposition of matrices and tensors: MPO and tensor trains.

Array libraries are loaded when the first array is worked on, never at import.
"""

from __future__ import annotations

from tensornet import errors, interop
from tensornet.accounting import Report
from tensornet.allocate import allocate
from tensornet.allocation import Allocation, Allotment
from tensornet.cached import CachedMPO
from tensornet.candidates import Candidate, SearchResult
from tensornet.certificate import Certificate, MetricCertificate
from tensornet.common_bonds import common_bonds
from tensornet.contract.chain import contract_matrix, contract_tensor
from tensornet.contract.matrix_plan import BreakEven, break_even
from tensornet.contract.plan import Plan
from tensornet.contract.planner import contract, plan
from tensornet.decompose import mpo, tt
from tensornet.factorize import factorize
from tensornet.io import load, save
from tensornet.layout import MatrixLayout, matrix_layout
from tensornet.network import MPO, TensorTrain, account, inner
from tensornet.search import search_shape
from tensornet.shared import shared_mpo
from tensornet.shared_network import SharedCertificate, SharedMPO
from tensornet.stack import MPOBatch
from tensornet.submodules import keep_public_names
from tensornet.threads import side_by_side

__version__ = "0.1.0"

keep_public_names(__name__)


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "MPO",
    "Allocation",
    "Allotment",
    "BreakEven",
    "CachedMPO",
    "Candidate",
    "Certificate",
    "MPOBatch",
    "MatrixLayout",
    "MetricCertificate",
    "Plan",
    "Report",
    "SearchResult",
    "SharedCertificate",
    "SharedMPO",
    "TensorTrain",
    "account",
    "allocate",
    "break_even",
    "common_bonds",
    "contract",
    "contract_matrix",
    "contract_tensor",
    "errors",
    "factorize",
    "inner",
    "interop",
    "load",
    "matrix_layout",
    "mpo",
    "plan",
    "save",
    "search_shape",
    "shared_mpo",
    "side_by_side",
    "tt",
]
