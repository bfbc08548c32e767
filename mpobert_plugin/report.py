"""What a conversion lost and saved: the error and the size of every matrix."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mpobert_plugin.accounting import account, ratio_below
from mpobert_plugin.attach_outside import outside_path
from mpobert_plugin.locate import family_of, layer_names, prefix_of
from mpobert_plugin.runtime import banks_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transformers import PreTrainedModel

    from mpobert_plugin.spec import BankSpec

SAVES_NOTHING = (
    "Nothing is saved: cores that are neither cut nor shared store as much as the matrices or "
    "more. Ask for sharing= (with fit= where layers differ), ratio=, max_params= or max_bond=, and "
    "look at the errors here before trusting the result."
)
# Of a model whose layers share already, more sharing saves nothing and most ratios are too large.
SHARED_BEFORE = (
    "Nothing is saved: cores that are not cut store as much as the matrices that the layers shared "
    "already, or more. Ask for {budgets}, or max_bond=, and look at the errors here before "
    "trusting the result."
)
ALL_PLAIN = "Nothing is saved: the budget leaves every matrix plain. Ask for {budgets}."
_PER_LINE = 8


@dataclass(frozen=True)
class MatrixReport:
    """One matrix of a converted model.

    Parameters
    ----------
    name : str
        Full name of its module.
    role : str
        Its role, such as 'query'.
    rows, cols : int
        Size.
    error : float or None
        Relative Frobenius error that the conversion left, adapter included; None for a matrix
        that was never another one, as in a fresh model.
    output_error : float or None
        Relative error of the output, root mean square over the calibration inputs.
    norm : float or None
        Frobenius norm before the conversion.
    parameters : int
        Number of parameters that make the matrix, shared ones included.
    stored : float
        Its part of what is stored: a tensor of twelve layers counts as a twelfth.

    Examples
    --------
    >>> MatrixReport("layer.0.query", "query", 4, 8, 0.1, None, 2.0, 20, 15.5).dense
    32
    """

    name: str
    role: str
    rows: int
    cols: int
    error: float | None
    output_error: float | None
    norm: float | None
    parameters: int
    stored: float

    @property
    def dense(self) -> int:
        """Number of entries of the plain matrix."""
        return self.rows * self.cols


@dataclass(frozen=True)
class ConversionReport:
    """Errors and sizes of all converted matrices; prints as a table.

    Errors are those of the conversion: training afterwards changes the matrices, not the report.

    Parameters
    ----------
    model : str
        Class of the model.
    matrices : tuple of MatrixReport
        In the order of the banks.
    stored, dense : int
        Stored parameters of the whole model, and those of its dense twin: the same model with
        plain matrices of its own in every layer.
    before : int or None
        What the model stored as it was when it was converted; None where that is not known. A
        head that came later counts in `stored` and `dense` alone.

    Examples
    --------
    >>> one = MatrixReport("a", "query", 4, 4, 0.5, None, 1.0, 8, 8.0)
    >>> two = MatrixReport("b", "query", 4, 4, 0.0, None, 2.0, 8, 8.0)
    >>> report = ConversionReport("BertModel", (one, two), 20, 40, before=25)
    >>> round(report.total_error, 4), report.largest.name, report.ratio, report.ratio_before
    (0.2236, 'a', 0.5, 0.8)
    """

    model: str
    matrices: tuple[MatrixReport, ...]
    stored: int
    dense: int
    before: int | None = None

    @property
    def ratio(self) -> float:
        """Stored parameters of the model divided by those of its dense twin."""
        return self.stored / self.dense if self.dense else 1.0

    @property
    def ratio_before(self) -> float | None:
        """Stored parameters divided by those of the model as it was; None where not known."""
        return self.stored / self.before if self.before else None

    @property
    def stored_matrices(self) -> int:
        """Stored parameters of the converted matrices."""
        return round(sum(matrix.stored for matrix in self.matrices))

    @property
    def dense_matrices(self) -> int:
        """Number of entries of the plain matrices."""
        return sum(matrix.dense for matrix in self.matrices)

    @property
    def total_error(self) -> float | None:
        """Relative Frobenius error of all matrices together; None where one has no error."""
        missing = norm = 0.0
        for matrix in self.matrices:
            if matrix.error is None or matrix.norm is None:
                return None
            missing += (matrix.error * matrix.norm) ** 2
            norm += matrix.norm**2
        return math.sqrt(missing / norm) if norm else 0.0

    @property
    def output_error(self) -> float | None:
        """Root mean square of the relative errors of the outputs; None without calibration."""
        known = [m.output_error for m in self.matrices if m.output_error is not None]
        return math.sqrt(sum(error**2 for error in known) / len(known)) if known else None

    @property
    def largest(self) -> MatrixReport | None:
        """The matrix with the largest relative error; None where no error is known."""
        known = [matrix for matrix in self.matrices if matrix.error is not None]
        return max(known, key=lambda matrix: matrix.error or 0.0, default=None)

    @property
    def saves_nothing(self) -> bool:
        """Whether the matrices take as many parameters as plain ones, or more."""
        return self.stored_matrices >= self.dense_matrices

    @property
    def note(self) -> str | None:
        """What to ask for when nothing is saved; None else."""
        if not self.saves_nothing:
            return None
        least = self.dense if self.before is None else self.before
        budgets = f"max_params= below {least:,}, ratio= below {ratio_below(least, self.dense):g}"
        if not self.matrices:
            return ALL_PLAIN.format(budgets=budgets)
        return SHARED_BEFORE.format(budgets=budgets) if least < self.dense else SAVES_NOTHING

    def to_dict(self) -> dict[str, Any]:
        """Return the report as values that JSON can hold.

        Returns
        -------
        dict
            Totals, the note that is printed when nothing is saved, and every matrix.
        """
        largest = self.largest
        return {
            "model": self.model,
            "total_error": self.total_error,
            "output_error": self.output_error,
            "largest_error": None if largest is None else largest.error,
            "stored": self.stored,
            "dense": self.dense,
            "before": self.before,
            "ratio": self.ratio,
            "ratio_before": self.ratio_before,
            "stored_matrices": self.stored_matrices,
            "dense_matrices": self.dense_matrices,
            "note": self.note,
            "matrices": [{**asdict(matrix), "dense": matrix.dense} for matrix in self.matrices],
        }

    def to_json(self) -> str:
        """Return the report as indented JSON text.

        Returns
        -------
        str
            JSON of `to_dict`.
        """
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        """Return the report as a table: a line for each role, then the error of each layer."""
        lines = [f"{self.model}, {len(self.matrices)} matrices in cores"]
        lines.append(f"{'matrices':<22}{'stored':>14}{'dense':>14}{'ratio':>8}  relative errors")
        for role, matrices in self._by_role().items():
            errors = _wrapped([_short(matrix.error) for matrix in matrices])
            lines.append(_line(role, matrices, errors[0]))
            lines += [f"{'':<60}{more}" for more in errors[1:]]
            outputs = [m.output_error for m in matrices if m.output_error is not None]
            for number, more in enumerate(_wrapped([_short(error) for error in outputs])):
                lines.append(f"{'' if number else '  of the outputs':<60}{more}".rstrip())
        lines.append(_line("all matrices", self.matrices, _short(self.total_error)))
        return "\n".join([*lines, *self.summary()])

    def _by_role(self) -> dict[str, list[MatrixReport]]:
        roles: dict[str, list[MatrixReport]] = {}
        for matrix in self.matrices:
            roles.setdefault(matrix.role, []).append(matrix)
        return roles

    def summary(self) -> Iterator[str]:
        """Return the totals and what they mean, as lines of text.

        Returns
        -------
        iterator of str
            Errors, sizes and, when nothing is saved, what to ask for.
        """
        total, output, largest = self.total_error, self.output_error, self.largest
        if total is not None and self.matrices:
            # Certificates speak of what was cut, not of the arithmetic.
            exact = "" if total else ", but for rounding"
            yield f"relative error of all matrices together {total:.4g}{exact}"
        if largest is not None and largest.error:
            yield f"largest {largest.error:.4g} in {largest.name}"
        if output is not None:
            yield f"relative error of the outputs on calibration inputs {output:.4g}, mean square"
        if self.ratio_before is not None:
            yield (
                f"stored parameters {self.stored:,} of {self.before:,} in the model as it was, "
                f"ratio {self.ratio_before:.4f}"
            )
        if self.before != self.dense:
            yield (
                f"stored parameters {self.stored:,} of {self.dense:,} in its dense twin, the "
                f"same model with a layer of its own per layer, ratio {self.ratio:.4f}"
            )
        if self.note is not None:
            yield self.note


def report(model: PreTrainedModel) -> ConversionReport:
    """Return the error and the size of every matrix that a conversion has replaced.

    A loaded model has the errors that were stored when it was converted.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model.

    Returns
    -------
    ConversionReport
        Prints as a table; `ConversionReport.to_json` for programs.

    Raises
    ------
    ConversionError
        When the model is not converted.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> import mpobert_plugin as mp
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> plain = BertModel(BertConfig(vocab_size=9, num_hidden_layers=2, **sizes))
    >>> found = report(mp.convert(plain, n=3, targets=["query"]))
    >>> len(found.matrices), found.saves_nothing, found.total_error < 1e-6
    (2, True, True)
    """
    plan = banks_of(model).plan
    family, layers, prefix = family_of(model), layer_names(model), prefix_of(model)
    found: list[MatrixReport] = []
    for spec in plan.banks:
        path = family.matrices[spec.role]
        names = [f"{prefix}{layers[layer]}.{path}" for layer in spec.layer_numbers]
        found += _matrices(spec, names)
    for spec in plan.outside:
        found += _matrices(spec, [prefix + outside_path(model, spec.role)])
    counts = account(model)
    name, sizes = type(model).__name__, (counts.unique, counts.dense, counts.before)
    return ConversionReport(name, tuple(found), *sizes)


def _matrices(spec: BankSpec, names: Sequence[str]) -> Iterator[MatrixReport]:
    maps = {"central": spec.central, "adapter": tuple(range(spec.n_layers))}
    sizes = {name: shape for name, shape in spec.tensor_shapes().items() if name != "bias"}
    for slot, name in enumerate(names):
        parameters, stored = 0, 0.0
        for tensor, shape in sizes.items():
            slices = maps.get(tensor.partition("_")[0], spec.auxiliary)
            parameters += math.prod(shape[1:])
            stored += math.prod(shape[1:]) / slices.count(slices[slot])
        yield MatrixReport(
            name=name,
            role=spec.role,
            rows=spec.rows,
            cols=spec.cols,
            error=_at(spec.errors, slot),
            output_error=_at(spec.output_errors, slot),
            norm=_at(spec.norms, slot),
            parameters=parameters,
            stored=stored,
        )


def _at(values: Sequence[float], slot: int) -> float | None:
    return values[slot] if values else None


def _line(name: str, matrices: Sequence[MatrixReport], errors: str) -> str:
    stored, dense = round(sum(m.stored for m in matrices)), sum(m.dense for m in matrices)
    ratio = stored / dense if dense else 1.0
    return f"{name:<22}{stored:>14,}{dense:>14,}{ratio:>8.4f}  {errors}".rstrip()


def _wrapped(words: Sequence[str]) -> list[str]:
    rows = range(0, len(words), _PER_LINE)
    return [" ".join(f"{word:>8}" for word in words[k : k + _PER_LINE]) for k in rows]


def _short(error: float | None) -> str:
    return "-" if error is None else f"{error:.3g}"
