"""``unstuck image build``: guest images of our own, from packages of this machine's distribution."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from unstuck.cli.cloud import connect, state_of
from unstuck.cli.errors import CliError

app = App(name="image", help="Guest images of our own.")


@app.command
def build(
    name: Literal["tiny", "postgresql", "mariadb"] = "tiny",
    *,
    folder: Path | None = None,
    register: Annotated[bool, Parameter(negative="")] = False,
    state: Path | None = None,
) -> None:
    """Build a guest image: `tiny` for servers (the next `unstuck up` uploads it), or that of a datastore.

    Parameters
    ----------
    name
        Which one.
    folder
        Where to put it (default: in the state folder, for a datastore in the cache of images).
    register
        Upload it and make it the image of its datastore's version; instances that are there keep theirs.
    state
        The state folder.
    """
    from unstuck.host import dbimage, tinyimage
    from unstuck.host.debian import BuildError

    if register and name == "tiny":
        raise CliError("--register is for datastores; `unstuck up` uploads the tiny image by itself.", 2)
    found = state_of(state)
    target = folder or (found.root / "tiny" if name == "tiny" else dbimage.default_folder(name))
    try:
        made = tinyimage.build(target) if name == "tiny" else dbimage.build(target, name)
    except BuildError as error:
        raise CliError(f"The {name} image could not be built: {error}.") from None
    except OSError as error:
        raise CliError(f"{error.filename or target}: {error.strerror or error}.") from None
    print(f"The {name} image {'was built' if made else 'is up to date'} in {target}.")
    if register:
        from unstuck.cli.dbimage import register as register_image

        with connect(found) as cloud:
            version = register_image(cloud, target)
        print(f"It is the image of {name} {version} now.")
