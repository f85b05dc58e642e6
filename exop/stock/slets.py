"""The stock slets without external resources, and the list of all stock slets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from exop.errors import SettingError
from exop.model.slets.ports import OutputPort, PortType
from exop.model.slets.slet import Slet, input_port, slet, spec_of
from exop.model.slets.spec import SletSpec
from exop.safe_repr import error_text
from exop.stock.aggregates import Aggregate
from exop.stock.event_time import Join, Watermark
from exop.stock.sinks import WriteLines, WriteParquet, WriteSqlite
from exop.stock.sources import count_up, read_csv, read_lines, read_log, read_parquet

if TYPE_CHECKING:
    from exop.expressions import Expression

T = TypeVar("T")


@slet
def pass_on(item: T) -> T:
    """Forward every item unchanged. Use it to merge the items of several channels."""
    return item


@slet
def show(item: Any) -> None:
    """Print every item on a separate line to stdout."""
    print(item, flush=True)  # noqa: T201 (its purpose)


class Split(Slet, Generic[T], name="split"):
    """Send each item to the output ports whose conditions hold for it or, if no condition holds, to `rest`.

    There is one output port for each condition, and all outputs have the type of the input. A condition that is NULL,
    such as `None > 60`, does not hold. If a condition cannot be tested (because a field is missing, or a text is
    compared with a number), the slet fails for the item.

    Args:
        conditions: A condition on `item` for each output port, by the name of the port: `{"fast": "item.speed > 60"}`.
    """

    reopens: ClassVar[bool] = True
    conditions: dict[str, str]
    rest: OutputPort[T]

    @classmethod
    def specialised(cls, settings: Mapping[str, Any], inputs: Mapping[str, PortType]) -> SletSpec:
        """Return a specification with an output for each condition; the outputs have the type of the input."""
        for port, text in settings["conditions"].items():
            _condition(port, text, inputs.get("item", PortType()))
        spec = spec_of(cls)
        return spec.with_outputs(dict.fromkeys(settings["conditions"], spec.ports["rest"].type))

    def __enter__(self) -> Self:
        self._tests = [
            (port, _condition(port, text, PortType()).item_function(), self.outputs[port].push)
            for port, text in self.conditions.items()
        ]
        return self

    @input_port
    def item(self, item: T) -> None:
        """Process one item."""
        ways = []
        for port, holds, push in self._tests:
            try:
                if holds(item):
                    ways.append(push)
            except Exception as error:
                raise ValueError(f"{port} = {self.conditions[port]!r} cannot be tested: {error_text(error)}") from error
        for push in ways or [self.rest.push]:
            push(item)


def _condition(port: str, text: str, item: PortType) -> Expression:
    if port == "rest":
        problem = "'rest' is the port of the items for which no condition holds; choose another name"
        raise SettingError(place="", setting="conditions", problem=problem)
    # Imported lazily: only conditions need it.
    from exop.expressions import Names, read_condition

    return read_condition(text, Names(f"conditions.{port}", {"item": item}))


_SOURCES = (count_up, read_lines, read_csv, read_log, read_parquet)
STOCK = (*_SOURCES, pass_on, show, Split, Join, Watermark, Aggregate, WriteLines, WriteSqlite, WriteParquet)
