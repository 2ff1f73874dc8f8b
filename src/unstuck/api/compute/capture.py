"""The action ``createImage``: an image of a server's disk."""

from __future__ import annotations

from unstuck.api.compute.common import BASE, as_name, caller, scope, wake
from unstuck.api.compute.create import check_metadata
from unstuck.api.errors import bad_request
from unstuck.api.image.forms import reserved
from unstuck.api.routes import Action as Act
from unstuck.api.routes import Body, Call, Reply, Route, actions
from unstuck.store import captures as store


class CreateImage(Body, frozen=True, kw_only=True):
    name: str
    metadata: dict[str, str] = {}


async def create_image(call: Call) -> Reply:
    """Action ``createImage``: 202 with the image's id from 2.45 on, before only with its address."""
    body: CreateImage = call.body
    image_id = call.new_id()
    properties = check_metadata(body.metadata)
    for key in properties:
        if reserved(key):
            raise bad_request(
                f"Invalid input for field metadata: {key!r} is a property that images have anyway."
            )
    asked = store.Capture(
        image_id=image_id,
        name=as_name(body.name, "name"),
        properties=properties,
        most=call.app.settings.images_per_project,
    )
    host = await call.store.run(store.create_image_of, call.params["id"], scope(call), asked, caller(call))
    wake(call, host)
    if call.version >= (2, 45):
        return Reply({"image_id": image_id})
    return Reply(headers={"location": call.url(f"/image/v2/images/{image_id}")})


ROUTES: list[Route] = [
    *actions(
        f"{BASE}/servers/{{id}}/action",
        [Act(name="createImage", handler=create_image, rule="member", body=CreateImage)],
    ),
]
