"""The guests' service of a host's process, put together."""

from __future__ import annotations

from pathlib import Path

from unstuck.core.port import Port
from unstuck.core.server.data import Machine
from unstuck.host.channel import ROOM_FOR_ALL, GuestChannel
from unstuck.host.client import HttpControl
from unstuck.host.drivers.folder import ServerFolder
from unstuck.host.guestcalls import Voice
from unstuck.host.guestclient import HttpDatabase
from unstuck.host.guests import GuestService
from unstuck.host.pieces import Places
from unstuck.host.signing import load_signer
from unstuck.runtime.room import Room


def serve_guests(port: Port, control: HttpControl, voice: Voice, folder: Path) -> GuestService:
    """A channel for each guest with an agent in it; ``folder`` is the host's state folder."""
    within = Room(ROOM_FOR_ALL)

    def open_channel(service: GuestService, server_id: str, server: Path, machine: Machine) -> GuestChannel:
        channel = GuestChannel(port, service, server_id, server, machine, within)
        port.spawn(f"channel of {server_id}", channel.run())
        return channel

    def folder_of(server_id: str) -> Path:
        return ServerFolder(folder, server_id).path

    return GuestService(
        port, HttpDatabase(control), voice, load_signer(folder), Places().at, folder_of, open_channel
    )
