"""The config drive, read back by the tools that everybody has."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from driver_wants import NIC, SERVER, make_spec, make_want

from unstuck.host import configdrive
from unstuck.host.driver import DriverError


def test_what_a_guest_is_told_about_itself() -> None:
    spec = make_spec(
        nics=(NIC, msgspec.structs.replace(NIC, port_id="port-2", gateway="10.7.0.2")),
        metadata={"role": "web"},
        keys={"mine": "ssh-ed25519 AAAA me"},
        user_data=base64.b64encode(b"#!/bin/sh\n").decode(),
    )
    files = configdrive.files(make_want(spec=spec))
    meta, network = json.loads(files["meta_data.json"]), json.loads(files["network_data.json"])
    assert meta["uuid"] == SERVER
    assert meta["public_keys"] == {"mine": "ssh-ed25519 AAAA me\n"}
    assert meta["meta"] == {"role": "web"}
    assert files["user_data"] == b"#!/bin/sh\n"
    assert network["links"][0]["ethernet_mac_address"] == NIC.mac
    first, second = network["networks"]
    assert (first["ip_address"], first["netmask"]) == ("10.7.0.5", "255.255.255.0")
    assert first["routes"] == [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.7.0.1"}]
    assert second["routes"] == []  # one default route only


def test_no_user_data_is_no_file_and_bad_user_data_is_refused() -> None:
    assert "user_data" not in configdrive.files(make_want())
    with pytest.raises(DriverError):
        configdrive.files(make_want(spec=make_spec(user_data="x")))


def test_the_same_server_gives_the_same_bytes() -> None:
    assert configdrive.vfat(configdrive.files(make_want())) == configdrive.vfat(
        configdrive.files(make_want())
    )


@pytest.mark.skipif(
    not shutil.which("fsck.vfat") or not shutil.which("mtype"), reason="no dosfstools, mtools"
)
@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 65535, 5_000_000])
def test_the_drive_is_a_sound_vfat_and_gives_back_what_went_in(tmp_path: Path, size: int) -> None:
    content = {
        "meta_data.json": b"{}" * 3000,
        "user_data": os.urandom(size),
        "a-name-of-exactly-26-chars": b"x",
    }
    image = tmp_path / "config.img"
    image.write_bytes(configdrive.vfat(content))
    subprocess.run(["fsck.vfat", "-n", image], check=True, capture_output=True)
    for name, data in content.items():
        command = ["mtype", "-i", str(image), f"::openstack/latest/{name}"]
        assert subprocess.run(command, check=True, capture_output=True).stdout == data
    label = subprocess.run(["mlabel", "-s", "-i", str(image), "::"], check=True, capture_output=True).stdout
    assert b"config-2" in label


def test_too_much_user_data_is_refused() -> None:
    with pytest.raises(DriverError, match="too large"):
        configdrive.vfat({"user_data": bytes(17 << 20)})
