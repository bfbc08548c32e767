"""The packages that everything here is built on: looked for before they are imported."""

from __future__ import annotations

from importlib.util import find_spec

from mpobert_plugin.errors import MissingPackageError


def require(*packages: str, extra: str = "mpobert") -> None:
    """Raise when a package is not installed, with the command that installs it.

    Parameters
    ----------
    *packages : str
        Names to import.
    extra : str
        Extra of the distribution that installs them.

    Raises
    ------
    MissingPackageError
        When one or more are missing; all of them are named.

    Examples
    --------
    >>> require("torch", "transformers")
    """
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise MissingPackageError(
            f"mpobert_plugin needs {' and '.join(missing)}, which cannot be found. "
            f'Install them: pip install "tensornet-mpo[{extra}]"'
        )
