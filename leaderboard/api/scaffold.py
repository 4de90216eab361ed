"""New plugins: a working skeleton, one file, that passes the contract as it is."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template

from leakboard.core import registry
from leakboard.core.errors import UserError
from leakboard.core.files import write_text
from leakboard.core.names import with_article

KINDS = ("defense", "attack")
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

DEFENSE = '''"""$title: what it does, in one line."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from leakboard.defenses.base import Defense
from leakboard.defenses.building_blocks.finite import or_zero
from leakboard.federation.party import Party
from leakboard.federation.payload import Parameters


class $class_name(Defense):
    """Each client adds Gaussian noise to its gradient: replace this by your scheme, with its formula."""

    name: ClassVar[str] = "$name"
    citation: ClassVar[str] = "Who, what, where, when"
    claim: ClassVar[str] = "What the scheme promises, in one sentence."

    sigma: float = Field(0.01, ge=0, description="standard deviation of the noise")

    def protect(self, me: Party, gradient: Parameters) -> Parameters:
        """Client: what it sends in place of its gradient. All randomness comes from `me.stream`."""
        with me.phase("DP"):
            stream, sound = me.stream("noise"), or_zero(gradient)  # noise hides no NaN: replace it first
            return {n: g + self.sigma * torch.from_numpy(stream.normal(*g.shape)).to(g) for n, g in sound.items()}
'''

ATTACK = '''"""$title: what it does, in one line."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field

from leakboard.attacks.base import Knowledge, MembershipAnswer, MembershipAttack, MembershipTask, final_model


class $class_name(MembershipAttack):
    """A candidate on which the last model is sure is a member: replace this by your attack, with its formula."""

    name: ClassVar[str] = "$name"
    citation: ClassVar[str] = "Who, what, where, when"

    own_records: int = Field(200, ge=1, description="auxiliary images from which the threshold is taken")

    def infer(self, knowledge: Knowledge, task: MembershipTask) -> MembershipAnswer:
        """Scores (N,), higher means member; the threshold comes from images that are not evaluated."""
        model = final_model(knowledge)

        def confidence(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            logits = knowledge.task.predict(model, images)
            return logits.gather(1, labels[:, None]).squeeze(1)

        own = knowledge.auxiliary.select(torch.arange(min(self.own_records, len(knowledge.auxiliary))))
        threshold = confidence(own.images, own.labels).median()
        scores = confidence(task.candidates.images, task.candidates.labels)
        return MembershipAnswer(scores, scores > threshold)
'''


def new_plugin(kind: str, name: str, folder: Path) -> Path:
    """Write the skeleton of a plugin into a folder; nothing is overwritten."""
    if not NAME.fullmatch(name) or len(name) > 60:
        raise UserError(
            f"A plugin's name is lower-case words joined by '-', such as 'noisy-gradient'; given: {name!r}."
        )
    if name in registry.entries(kind):
        file = registry.find(kind, name)["file"]
        raise UserError(f"There is {with_article(kind)} '{name}' already ({file}): choose another name.")
    path = folder / f"{name.replace('-', '_')}.py"
    if path.exists():
        raise UserError(f"The file {path} is there already: nothing was written.")
    words = name.split("-")
    text = Template(DEFENSE if kind == "defense" else ATTACK).substitute(
        name=name, title=" ".join(words).capitalize(), class_name="".join(word.capitalize() for word in words)
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise UserError(f"The file {path} cannot be written: {error.strerror}.") from None
    return path
