"""The folder that the demo writes: made aside and renamed, so that it is whole or absent."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from types import TracebackType

from mpobert_plugin.demo.errors import DemoError

MARKER = "demo.json"  # says that a folder was written by the demo and may be replaced


class OutputFolder:
    """A folder in the making; leaving the block without :meth:`publish` removes it.

    Parameters
    ----------
    target : pathlib.Path
        Where the finished folder goes. It may be absent, empty, or an earlier demo's folder.

    Raises
    ------
    DemoError
        When ``target`` is something else, or no folder can be made beside it.
    """

    def __init__(self, target: Path) -> None:
        self.target = target.expanduser().absolute()
        if self.target.exists() and not _replaceable(self.target):
            raise DemoError(
                f"out must be a new folder or one that the demo wrote, got {target}, which holds "
                f"other things. Choose another place with --out."
            )
        self.path = Path()

    def __enter__(self) -> OutputFolder:
        parent = self.target.parent
        try:
            parent.mkdir(parents=True, exist_ok=True)
            made = tempfile.mkdtemp(prefix=f".{self.target.name}-", dir=parent)
        except OSError as error:
            raise DemoError(
                f"out must be in a folder that can be written, got {parent} ({error.strerror}). "
                "Choose another place with --out."
            ) from error
        self.path = Path(made)
        self.path.chmod(0o755)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def publish(self) -> Path:
        """Rename the folder to its place, an earlier demo's folder giving way; return the place."""
        old = self.path.with_name(self.path.name + "-old")
        if self.target.exists():
            self.target.rename(old)
        self.path.rename(self.target)
        shutil.rmtree(old, ignore_errors=True)
        return self.target


def _replaceable(folder: Path) -> bool:
    if not folder.is_dir() or folder.is_symlink():
        return False
    return (folder / MARKER).is_file() or not any(folder.iterdir())
