"""Recording what a Flower server or client received, ready for `lb.attack` (docs/foreign-updates.md).

    from leakboard.flower import recorded

    strategy = recorded(FedAvg(), "recording")   # and use it as before

It needs `flwr` (its Message API), which is installed apart: `pip install 'leakboard[flower]'`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakboard.core.errors import UserError

if TYPE_CHECKING:
    from flwr.clientapp.typing import Mod
    from flwr.serverapp.strategy import Strategy

__all__ = ["recorded", "recording_mod"]


def recorded(strategy: Strategy, folder: str | Path) -> Strategy:
    """The same strategy, which also writes what the server sent and received in each round into a folder.

    Nothing about the training changes. A round is written before it is aggregated; a client whose answer is an error
    has no update in it. The folder must not hold a recording already.
    """
    _need_flwr()
    from leakboard.flower.strategy import RecordedStrategy

    made: Any = RecordedStrategy(strategy, folder)
    return made


def recording_mod(folder: str | Path) -> Mod:
    """A mod for a `ClientApp`: it writes what this client got and sent in each round of training.

    Flower may run a client in a new process for each message, so the mod goes on with a recording that is there. Each
    client needs a folder of its own.
    """
    _need_flwr()
    from leakboard.flower.client_mod import make_mod

    return make_mod(folder)


def _need_flwr() -> None:
    try:
        import flwr.serverapp.strategy  # noqa: F401  (only whether it is there)
    except ImportError:
        raise UserError(
            "leakboard.flower needs `flwr` with its Message API (1.21 or newer): pip install 'leakboard[flower]'."
        ) from None
