"""The conditions of a proof before a change, and of keeping predecessors after it, as they are sent."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from exop.errors import SettingError
from exop.model.shadow import Shadow
from exop.remoting.offered import PlanLike

Above = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class Proof(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A shadow (`exop.model.shadow`), where it says items or seconds, and for how long predecessors are kept.

    Relative paths in `divert` are meant from `folder`, the working directory of the client.
    """

    items: Annotated[int, msgspec.Meta(ge=1)] | None = None
    seconds: Above | None = None
    slower: Above = 2.0
    divert: Annotated[Mapping[str, bool | int | float | str | None], msgspec.Meta(max_length=200)] = msgspec.field(
        default_factory=dict
    )
    copy: bool = True
    allow_no_output: bool = False
    keep: Above | None = None
    folder: str = ""

    def of(self, plan: PlanLike) -> PlanLike:
        """The plan with this proof before it.

        Raises:
            PlanError: something in it cannot run beside the mesh.
        """
        shadow = None
        if self.items is not None or self.seconds is not None:
            shadow = Shadow(
                items=self.items,
                seconds=self.seconds,
                slower=self.slower,
                divert={name: self._from_folder(plan, name, value) for name, value in self.divert.items()},
                copy=self.copy,
                allow_no_output=self.allow_no_output,
            )
        return plan.proven(shadow, self.keep)

    def _from_folder(self, plan: PlanLike, name: str, value: object) -> object:
        """A diverted path is meant from the client's folder; what does not fit its setting is refused by the plan."""
        node, _, key = name.rpartition(".")
        tried = [node] if node else [step.node for step in plan.steps]
        slets = [plan.after.nodes[one].slet for one in tried if one in plan.after.nodes]
        setting = next((one.settings[key] for one in slets if key in one.settings), None)
        with suppress(SettingError):
            path = setting.converted(name, value) if setting is not None else None
            return Path(self.folder) / path if isinstance(path, Path) else value
        return value


def proven(plan: PlanLike, proof: Proof | None) -> PlanLike:
    """The plan, with a proof if one is asked for."""
    return plan if proof is None else proof.of(plan)
