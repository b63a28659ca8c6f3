"""Rows that are kept for conversations."""

import weakref

import attrs


@attrs.define(eq=False)
class RowPin:
    """
    A claim of several requests, one after the other, on the row of a batcher whose cache they share.

    Give it to each of them (:meth:`~.batcher.Batcher.submit`). Between them the row goes to another request
    only if no other row is free; then the next one takes any row, and its prompt is fed again. The claim
    ends with :meth:`release`, or when nothing refers to the pin any more.
    """

    row: int | None = attrs.field(default=None, init=False)
    """The row; None before a request has one, after :meth:`release`, and once another has taken it."""

    def release(self) -> None:
        """Give the row up; a later request with this pin takes one again."""
        self.row = None


@attrs.define(eq=False)
class RowPins:
    """Which pin holds which row of a decoder."""

    _pins: "dict[int, weakref.ref[RowPin]]" = attrs.field(factory=dict, init=False)
    """The last pin that held each row; it may have been released since."""

    def hold(self, row: int, pin: RowPin | None) -> None:
        """A request with this *pin*, or without one, takes *row*: another pin loses it."""
        before = self._holder(row)
        if before is not None and before is not pin:
            before.release()
        self._pins.pop(row, None)
        if pin is not None:
            pin.row, self._pins[row] = row, weakref.ref(pin)

    def others(self, pin: RowPin | None) -> set[int]:
        """The rows that pins other than *pin* hold."""
        holders = {row: self._holder(row) for row in self._pins}
        return {row for row, holder in holders.items() if holder is not None and holder is not pin}

    def own(self, pin: RowPin | None) -> int | None:
        """The row that *pin* holds, if any."""
        row = None if pin is None else pin.row
        return row if row is not None and self._holder(row) is pin else None

    def _holder(self, row: int) -> RowPin | None:
        reference = self._pins.get(row)
        pin = None if reference is None else reference()
        return pin if pin is not None and pin.row == row else None
