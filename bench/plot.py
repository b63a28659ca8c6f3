"""Curves as a picture, with matplotlib where it is installed."""

from pathlib import Path

from .report import Curves


def plot_curves(file: Path, curves: Curves) -> None:
    """
    Draw *curves* into *file*.

    Args:
        file: Its suffix says the format, such as ``.svg``.

        curves: With at least one point each.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("a plot needs matplotlib: pip install 'decodekit[plot]'") from error
    # The same curves are to give the same file.
    with rc_context({"svg.hashsalt": "decodekit"}):
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.add_subplot()
        for name, points in curves.points.items():
            axes.plot([x for x, _ in points], [y for _, y in points], marker="o", label=name)
        axes.set(title=curves.title, xlabel=curves.x_label, ylabel=curves.y_label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
