"""A user's own network, from a file."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from leakboard.core.errors import UserError
from leakboard.federation.models.base import Model


class Module(Model):
    """Your own nn.Module: `module:FILE.py:Class`, built as Class(shape, classes)."""

    name: ClassVar[str] = "module"
    shorthand: ClassVar[str] = "target"
    location_fields: ClassVar[tuple[str, ...]] = ("target",)

    target: str = Field(description="FILE.py:Class; the class takes (shape, classes)")
    source_digest: str = Field("", description="SHA-256 of the file; the run fills it in to notice a change")

    def _file(self) -> tuple[Path, str]:
        path, _, name = self.target.rpartition(":")
        if not path or not Path(path).is_file():
            raise UserError(f"The model module:{self.target} does not exist: give module:FILE.py:Class.")
        return Path(path), name

    def pinned(self) -> Module:
        """The same model with the file's digest among its parameters, so that the record's key depends on the code."""
        path, name = self._file()
        digest = hashlib.sha256(path.read_bytes() + b"\0" + name.encode()).hexdigest()
        return self.model_copy(update={"source_digest": digest})

    def build(self, shape: tuple[int, int, int], classes: int) -> nn.Module:
        """Import the file, instantiate the class, and check that it maps (2, *shape) to (2, classes)."""
        path, name = self._file()
        spec = importlib.util.spec_from_file_location(f"leakboard_model_{path.stem}", path)
        if spec is None or spec.loader is None:
            raise UserError(f"The model module:{self.target} is not a Python file: give module:FILE.py:Class.")
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = loaded  # dataclasses, for example, look up their own module
        try:
            spec.loader.exec_module(loaded)
            network: nn.Module = getattr(loaded, name)(shape, classes)
            out = _tried(network, shape)
        except Exception as error:
            raise UserError(
                f"The model module:{self.target} cannot be used: {type(error).__name__}: {error}."
            ) from error
        if not isinstance(out, Tensor) or tuple(out.shape) != (2, classes):
            given = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise UserError(
                f"The model module:{self.target} must map (N, {', '.join(map(str, shape))}) to (N, {classes}); "
                f"given: {given}."
            )
        return network


def _tried(network: nn.Module, shape: tuple[int, int, int]) -> object:
    """The network's output for two blank images; in eval mode, so that the trial does not change its buffers."""
    if not isinstance(network, nn.Module):
        raise TypeError(f"{type(network).__name__} is not an nn.Module")
    network.eval()
    with torch.no_grad():
        out: object = network(torch.zeros(2, *shape))
    network.train()
    return out
