"""Short cuts that a subclass may have outrun."""

from decodekit.decoding.offered import offered


class Part:
    """Has a short cut."""

    def __call__(self) -> str:
        return "long"

    def short(self) -> str:
        return "short"


class Another(Part):
    """Is called as its base, by another name."""

    name = "another"


class Changed(Part):
    """Does something else when it is called."""

    def __call__(self) -> str:
        return "changed"


class Both(Changed):
    """And has a short cut for that."""

    def short(self) -> str:
        return "changed, but short"


def test_the_method_where_it_still_holds() -> None:
    """Its own or an inherited one; None where a call does something else, or there is none."""
    assert "short" == offered(Part(), "short")()
    assert "short" == offered(Another(), "short")()
    assert offered(Changed(), "short") is None
    assert "changed, but short" == offered(Both(), "short")()
    assert offered(lambda: "long", "short") is None
    assert offered(object(), "short") is None
