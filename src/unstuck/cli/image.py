"""``unstuck image build``: the tiny guest image, from packages of this machine's distribution."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from unstuck.cli.cloud import state_of
from unstuck.cli.errors import CliError

app = App(name="image", help="Guest images of our own.")


@app.command
def build(folder: Path | None = None, *, state: Path | None = None) -> None:
    """Build the tiny guest image; the next `unstuck up` uploads it.

    Parameters
    ----------
    folder
        Where to put it (default: `tiny` in the state folder).
    state
        The state folder.
    """
    from unstuck.host.debian import BuildError
    from unstuck.host.tinyimage import build as build_tiny

    target = folder or state_of(state).root / "tiny"
    try:
        made = build_tiny(target)
    except BuildError as error:
        raise CliError(f"The tiny image could not be built: {error}.") from None
    except OSError as error:
        raise CliError(f"{error.filename or target}: {error.strerror or error}.") from None
    print(f"The tiny image {'was built' if made else 'is up to date'} in {target}.")
