"""Summaries as HTML, for notebooks."""

from collections.abc import Mapping
from html import escape


def summary_table(title: str, fields: Mapping[str, object]) -> str:
    """
    A small table of *fields* below a *title*, everything escaped.

    >>> summary_table("One", {"text": "<b>"})
    '<b>One</b><table><tr><th>text</th><td>&lt;b&gt;</td></tr></table>'
    """
    rows = (
        f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in fields.items()
    )
    return f"<b>{escape(title)}</b><table>{''.join(rows)}</table>"


def shortened(text: str, most: int = 60) -> str:
    """
    *text* as a literal of at most *most* characters and an ellipsis.

    >>> shortened("abc"), shortened("abcdef", 3)
    ("'abc'", "'abc...'")
    """
    return repr(text if len(text) <= most else text[:most] + "...")
