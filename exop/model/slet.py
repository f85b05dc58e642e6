"""`@slet` and `Slet`: a signature becomes a slet (the signature is the contract)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self, TypeAlias, TypeVar, dataclass_transform, overload

from exop.model.memento import as_dataclass
from exop.model.ports import OutputPort, PortType
from exop.model.signature import read_class, read_function, wrong
from exop.model.spec import DEAD_LETTERS, POLICIES, Policy, SletSpec, unfit_bounds
from exop.model.tie import Committed

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=Callable[..., Any])
Specialised: TypeAlias = Callable[[Mapping[str, Any], Mapping[str, PortType]], SletSpec]


@overload
def slet(function: F) -> F: ...
@overload
def slet(
    *,
    name: str | None = None,
    atomic: bool = False,
    on_error: Policy = "suspend",
    timeout: float | None = None,
    dead_letters: int = DEAD_LETTERS,
    effects: bool | None = None,
    specialised: Specialised | None = None,
) -> Callable[[F], F]: ...
def slet(
    function: F | None = None, *, name: str | None = None, specialised: Specialised | None = None, **care: Any
) -> F | Callable[[F], F]:
    """Make a function a slet; it remains callable as a function.

    The positional parameter is the input port, a parameter typed as a `Memento` the state, keyword-only parameters
    are the settings, and the return annotation is the type of the output `out`.

    Args:
        function: The function, when used without parentheses.
        name: The slet's name; the function's own by default.
        care: How failures are handled. An application may override `on_error`, the policy when the slet raises;
            `timeout`, the seconds after which an item in progress is reported; and `dead_letters`, the maximum number
            of items that the policy of that name keeps. It cannot override `atomic`: a second try of an item starts
            from a copy of the memento taken before the first; and `effects`: the slet acts on something outside the
            mesh (a file, a service), so two instances must not run at the same time. The default of `effects` is
            `True` for sources and sinks, `False` for others.
        specialised: A function of the complete settings and of the known types of the inputs, by port. It returns the
            specification of the slet with the ports for these (`SletSpec.with_outputs`).

    Raises:
        SletError: the signature does not define a slet; the message states the correction.
    """

    def mark(plain: F) -> F:
        spec = read_function(plain)
        _check_care(spec.name, care)
        spec = replace(spec, name=name or spec.name, **care)
        plain.__slet__ = spec  # type: ignore[attr-defined]
        if specialised is not None:
            plain.specialised = specialised  # type: ignore[attr-defined]
        return plain

    return mark if function is None else mark(function)


def input_port(method: M) -> M:
    """Make a method of a `Slet` class an input port of the method's name."""
    method.__input_port__ = True  # type: ignore[attr-defined]
    return method


@dataclass_transform(kw_only_default=True, field_specifiers=(dataclasses.field,))
class Slet:
    """The base of slets with several ports, or with something to open and close.

    Fields typed `OutputPort[T]` and `InputPort[T]` are injected, a field typed as a `Memento` is the state, all other
    fields are the settings. Methods marked `@input_port` receive the items; what they return is sent by `out`. The
    platform iterates a class with `__iter__`: an α-slet, or a slet that pulls its inputs. `__enter__` opens (and
    returns only when the slet is ready), `__exit__` closes.

    A class with a class method `specialised(settings, inputs)` has ports that depend on its settings and on its inputs;
    it sends items by `self.outputs[name]`. Fields typed `OutputPorts[T]` and `InputPorts[T]`, and input methods with
    two parameters, of which the first is the name of the port, declare any number of ports.

    Class keywords: `own_driver=True` (pushes from threads of its own), and all those of `@slet`.
    A subclass inherits all of them except the name.
    """

    #: The slet keeps state outside its memento (in an engine): a replacement has to allow its loss explicitly.
    keeps_own_state: ClassVar[bool] = False
    #: The application takes checkpoints: set by the platform before the first item.
    checkpointed: ClassVar[bool] = False
    #: Opening occupies the interpreter for long (it computes, or imports): a plan warns of it before the first opening.
    heavy_opening: ClassVar[bool] = False
    #: A change of settings opens a new instance, which replaces the old one: the settings cannot be set in place.
    reopens: ClassVar[bool] = False
    #: The output ports by name, and the names of the input ports; set where there is a `specialised`, or a family.
    outputs: ClassVar[Mapping[str, OutputPort[Any]]]
    inputs: ClassVar[tuple[str, ...]]
    __slet__: ClassVar[SletSpec | None] = None
    __slet_options__: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls, *, name: str | None = None, own_driver: bool | None = None, **more: Any) -> None:
        care = {key: more.pop(key) for key in _CARE if key in more}
        super().__init_subclass__(**more)
        given = {**care, "own_driver": own_driver}
        options = {**cls.__slet_options__, **{key: value for key, value in given.items() if value is not None}}
        cls.__slet_options__ = options
        care = {key: options[key] for key in _CARE if key in options}
        _check_care(cls.__qualname__, care)
        as_dataclass(cls, "slet", eq=False, repr=False)
        spec = read_class(cls, own_driver=options.get("own_driver", False))
        if spec is not None:
            spec = replace(spec, name=name or spec.name, **care)
        cls.__slet__ = spec

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def ready(self) -> None:
        """Return when the slet can process items without delay: for engines that have to warm up.

        Called after `__enter__`, before the stream pauses for the change.
        """

    def quiesce(self) -> None:
        """Return when the results of all items received have been sent: for slets with a driver of their own.

        Called before such a slet is replaced or removed, while no items arrive. A slet without inputs stops sending,
        so that its memento agrees with what it has sent.
        """

    def proceed(self) -> None:
        """Continue after `quiesce`: the change for which it was called was not made.

        Called once more if the platform stopped waiting for `quiesce`, when that call returns.
        """

    def committed(self) -> Committed | None:
        """The progress that the engine itself has committed: for slets with a `Tie`; by default that of the `Tie`."""
        return None

    def inherit(self, predecessor: Any) -> None:
        """Take over the state inside *predecessor*, a quiesced slet: for engines that keep their own state.

        Called while no items arrive. An exception refuses the change, and the predecessor continues.
        """

    @classmethod
    def inherits(cls, before: Any, after: Any) -> str | None:
        """Why the node *after*, of this class, cannot take over the state inside the node *before*; `None`: it can.

        Called when a change is planned, before anything is opened.
        """
        return "its engine keeps it, and the platform cannot read it there"

    def metrics(self) -> dict[str, int | float | str]:
        """Return further figures, which are shown with those of the platform."""
        return {}


def spec_of(thing: Any) -> SletSpec:
    """The specification of a `@slet` function or a `Slet` class.

    Raises:
        SletError: *thing* is neither.
    """
    if isinstance(thing, SletSpec):
        return thing
    spec = getattr(thing, "__slet__", None)
    if isinstance(spec, SletSpec):
        return spec
    name = getattr(thing, "__qualname__", repr(thing))
    if isinstance(thing, type) and issubclass(thing, Slet):
        raise wrong(name, "the class has no port", "mark a method with @input_port, or define __iter__")
    raise wrong(name, "it was never marked", "put @slet above the function, or derive from Slet")


#: What `@slet` and the class keywords say about items that make trouble.
_CARE = ("atomic", "on_error", "timeout", "dead_letters", "effects")


def _check_care(name: str, care: Mapping[str, Any]) -> None:
    strange = [key for key in care if key not in _CARE]
    if strange:
        raise wrong(name, f"@slet has no option {', '.join(strange)}", f"use name, {', '.join(_CARE)}")
    policy = care.get("on_error", "suspend")
    if policy not in POLICIES:
        raise wrong(name, f"on_error={policy!r} is no policy", f"use one of {', '.join(POLICIES)}")
    problem = unfit_bounds(care.get("timeout"), care.get("dead_letters"))
    if problem is not None:
        raise wrong(name, *problem.split("; ", 1))
