"""A user's own network, from a file."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import ClassVar

import torch
from pydantic import Field
from torch import nn

from core.errors import UserError
from federation.models.base import Model


class Module(Model):
    """Your own nn.Module: `module:FILE.py:Class`, built as Class(shape, classes)."""

    name: ClassVar[str] = "module"
    shorthand: ClassVar[str] = "target"
    location_fields: ClassVar[tuple[str, ...]] = ("target",)

    target: str = Field(description="FILE.py:Class; the class takes (shape, classes)")
    source_digest: str = Field("", description="SHA-256 of the file, filled in by the run so that a change is noticed")

    def _file(self) -> tuple[Path, str]:
        path, _, name = self.target.rpartition(":")
        if not path or not Path(path).is_file():
            raise UserError(f"The model module:{self.target} is not there: give module:FILE.py:Class.")
        return Path(path), name

    def pinned(self) -> Module:
        """The same model with the file's digest among its parameters (so the record's key knows the code)."""
        digest = hashlib.sha256(self._file()[0].read_bytes()).hexdigest()
        return self.model_copy(update={"source_digest": digest})

    def build(self, shape: tuple[int, int, int], classes: int) -> nn.Module:
        """Import the file, make the class, and check that it maps (2, *shape) to (2, classes)."""
        path, name = self._file()
        spec = importlib.util.spec_from_file_location(f"leakboard_model_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(loaded)
            network = getattr(loaded, name)(shape, classes)
            with torch.no_grad():
                out = network(torch.zeros(2, *shape))
        except Exception as error:
            raise UserError(
                f"The model module:{self.target} cannot be used: {type(error).__name__}: {error}."
            ) from error
        if not isinstance(network, nn.Module) or tuple(out.shape) != (2, classes):
            raise UserError(
                f"The model module:{self.target} must map (N, {', '.join(map(str, shape))}) to (N, {classes}); "
                f"given: {tuple(out.shape)}."
            )
        return network
