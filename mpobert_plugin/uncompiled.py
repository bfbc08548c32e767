"""Functions that a compiler runs as they are where nothing around them is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from torch._C._dynamo.eval_frame import (
    _FrameAction,
    _FrameExecStrategy,
    set_code_exec_strategy,
)

if TYPE_CHECKING:
    from types import FunctionType

Hook = TypeVar("Hook", bound=Callable[..., Any])


def no_graph_of_its_own(hook: Hook) -> Hook:
    """Return a function that is traced inside a graph and never becomes a graph by itself.

    ``torch.compile`` of a model with hooks leaves the hooks of the outermost module outside its
    graph and would compile each of them alone. What such a graph hands to the readers is lost,
    since their places belong to a thread, and every layer would rebuild its matrix. Run as it is,
    the hook gives its matrices to the graph of the model. Inside a larger graph nothing changes.

    Parameters
    ----------
    hook : function
        A forward hook; the mark is put on its code.

    Returns
    -------
    function
        The same one.

    Examples
    --------
    >>> no_graph_of_its_own(no_graph_of_its_own) is no_graph_of_its_own
    True
    """
    # torch offers this only here: its public marks would break a larger graph, too.
    run_as_it_is = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    set_code_exec_strategy(cast("FunctionType", hook).__code__, run_as_it_is)
    return hook
