"""Small windows over the screen: keys, a question, and the form for a boost."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, Select, Static

from distributed_grid.cli.top.feed import in_background
from distributed_grid.errors import GridError
from distributed_grid.model.leases import DeliveryChoice
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.requests import make_ask, request_body
from distributed_grid.model.times import local_times

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import Boost

_ANY: Final = "automatic"

KEYS = """\
Up, Down  move                       Tab     nodes, boosts, events
Enter     all about a node or boost  Escape  back
/         filter by name or state    s       sort by the next of:
n name   p pressure   c cpu   m memory   g gpu   f free CPUs
b         a boost for the selected node
r         release the selected boost
w         the queue                  t       limits and teams
l         workloads of roles         q       quit

Pressure is measured: 0.3 cpu + 0.3 memory + 0.4 gpu, or half and half
on a node without GPUs. A node that is starting, stale or down has
none. Amounts are free/total (base)."""


class Help(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "dismiss", "Back")]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label("Keys", classes="title")
            yield Static(KEYS, markup=False)


class Confirm(ModalScreen[bool]):
    """A question: `y` or Enter on the button is yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape", "answer(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._question, markup=False)
            with Horizontal(classes="buttons"):
                yield Button("Release (y)", id="yes", variant="warning", compact=True)
                yield Button("Keep (n)", id="no", compact=True)

    def on_mount(self) -> None:
        self.query_one("#no").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


class BoostForm(ModalScreen["Boost | None"]):
    """The form for a boost. It closes with the boost or with None, and shows refusals of the controller."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Back")]

    def __init__(self, target: str, kinds: Sequence[str], nodes: Sequence[str], request: Callable[..., Boost]) -> None:
        super().__init__()
        self._target = target
        self._choices: dict[str, tuple[str, Sequence[str]]] = {
            "kind": ("Kind", kinds),
            "priority": ("Priority", [*AllocationPriority]),
            "source": ("From", [_ANY, *(node for node in nodes if node != target)]),
            "delivery": ("Delivery", [_ANY, *DeliveryChoice]),
        }
        self._request = request
        self._tries: dict[tuple[str, ...], str] = {}

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label(f"A boost for {self._target}", classes="title", markup=False)
            yield from self._choice("kind", "cpu")
            with Horizontal(classes="field"):
                yield Label("Amount")
                yield Input(placeholder="cores, devices or GB", id="amount", compact=True)
            with Horizontal(classes="field"):
                yield Label("For")
                yield Input("1h", placeholder="30m, 1h, or seconds", id="duration", compact=True)
            yield from self._choice("priority", AllocationPriority.NORMAL)
            yield from self._choice("source", _ANY)
            yield from self._choice("delivery", _ANY)
            with VerticalScroll(id="trouble"):
                yield Static("", id="message", markup=False)
            with Horizontal(classes="buttons"):
                yield Button("Request", id="request", variant="primary", compact=True)
                yield Button("Cancel (Esc)", id="cancel", compact=True)

    def _choice(self, name: str, value: str) -> ComposeResult:
        label, words = self._choices[name]
        with Horizontal(classes="field"):
            yield Label(label)
            yield Select([(word, word) for word in words], value=value, allow_blank=False, compact=True, id=name)

    def on_mount(self) -> None:
        self.query_one("#amount").focus()

    def on_input_submitted(self) -> None:
        self._ask()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "request":
            self._ask()
        else:
            self.dismiss(None)

    def action_cancel(self) -> None:
        self.dismiss(None)

    def _ask(self) -> None:
        button = self.query_one("#request", Button)
        if button.disabled:
            return
        amount, duration = (self.query_one(f"#{name}", Input).value.strip() for name in ("amount", "duration"))
        chosen = {name: str(self.query_one(f"#{name}", Select).value) for name in self._choices}
        source, delivery = (None if chosen[name] == _ANY else chosen[name] for name in ("source", "delivery"))
        body = request_body(
            self._target,
            {chosen["kind"]: amount},
            duration_seconds=duration,
            priority=chosen["priority"],
            source_node=source,
            delivery=delivery,
        )
        try:
            make_ask(body, fractional_gpus=True)  # report typos here: the controller would log a refused attempt
        except GridError as error:
            self._tell(error_text(error))
            return
        # A retry after a lost answer gets the boost of the first try; different values are a different boost.
        key = self._tries.setdefault((amount, duration, *chosen.values()), uuid.uuid4().hex)
        button.disabled = True
        self._tell("Requesting ...")
        in_background(
            lambda: self._request(body, idempotency_key=key),
            lambda result: self.app.call_from_thread(self._answered, result),
        )

    def _answered(self, result: Boost | GridError) -> None:
        if not self.is_attached:
            return  # the user closed the form before the answer; a granted boost appears in the table
        if isinstance(result, GridError):
            self.query_one("#request", Button).disabled = False
            self._tell(error_text(result))
        else:
            self.dismiss(result)

    def _tell(self, text: str) -> None:
        self.query_one("#message", Static).update(text)


def error_text(error: GridError) -> str:
    """An error as lines: what happened, what to do next, and why. A long list of reasons comes last."""
    next_step = [f"Try: {error.try_next}"] if error.try_next else []
    lines = [error.message, *next_step, *(f"- {line}" for line in error.because)]
    return "\n".join(local_times(line, now=datetime.now(UTC)) for line in lines)
