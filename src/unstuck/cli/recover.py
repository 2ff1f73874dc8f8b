"""``unstuck recover``: backups from the store of objects and the recovery file alone, on an empty machine.

No cloud is needed, and none is looked for. What is written has been decrypted and checked piece by piece; a
restore that cannot be finished leaves nothing that looks like one.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from unstuck.cli.errors import CliError
from unstuck.cli.storeat import location
from unstuck.cli.words import counted, plain

if TYPE_CHECKING:
    from unstuck.blobs.keys import Recovery
    from unstuck.blobs.manifest import Manifest
    from unstuck.blobs.moments import Plan
    from unstuck.blobs.objects import Objects


def recover(
    *,
    from_: Annotated[str, Parameter(name="--from")],
    key: Path,
    list_: Annotated[bool, Parameter(name="--list", negative="")] = False,
    restore: str | None = None,
    at: str | None = None,
    to: Path | None = None,
    endpoint: str | None = None,
    region: str | None = None,
    credentials: Path | None = None,
) -> int:
    """List backups, or restore one into a folder, from the store of objects alone.

    Parameters
    ----------
    from_
        Where the backups are: s3://bucket/prefix, file:///folder, or a folder.
    key
        The recovery file that `unstuck up` wrote (recovery-key.json).
    list_
        List what is there (this is what it does without --restore, too).
    restore
        Id of a backup to be restored; with --at of an instance.
    at
        A moment, like 2026-11-30T12:00:00Z, to which the instance is restored; without a zone it is UTC.
    to
        The folder to restore into; it must not be there yet.
    endpoint
        URL of an S3 service that is not Amazon's.
    region
        Its region (default: us-east-1).
    credentials
        File with AWS_ACCESS_KEY_ID=… and AWS_SECRET_ACCESS_KEY=…; without it they come from the environment.
    """
    from unstuck.blobs.keys import FORMAT, Recovery
    from unstuck.blobs.objects import BlobError, open_objects

    os.umask(0o077)
    try:
        file = msgspec.json.decode(key.read_bytes(), type=Recovery)
    except OSError as error:
        raise CliError(f"{key} cannot be read: {error.strerror}.") from None
    except msgspec.DecodeError:
        raise CliError(f"{key} is no recovery file.") from None
    if file.format != FORMAT:
        raise CliError(f"{key} has format {file.format}, this version of Unstuck knows {FORMAT}.")
    if (restore is None) != (to is None):
        raise CliError("--restore ID and --to FOLDER belong together.")
    moment = None if at is None else _moment(at)
    if moment is not None and restore is None:
        raise CliError("--at needs --restore INSTANCE_ID and --to FOLDER.")
    if list_ and restore is not None:
        raise CliError("--list or --restore, not both.")
    try:
        objects = open_objects(location(from_, endpoint, region, credentials))
    except ValueError as error:
        raise CliError(f"--from {from_}: {error}.") from None
    try:
        if restore is None or to is None:
            return _list(objects, file)
        if moment is not None:
            return _restore_moment(objects, file, restore, moment, to)
        return _restore(objects, file, restore, to)
    except BlobError as error:
        raise CliError(f"The store of objects did not do it ({error.problem}): {error.reason}") from None


def _moment(text: str) -> float:
    from unstuck.core.time import moment_of

    try:
        return moment_of(text)
    except ValueError:
        raise CliError(f"--at: {text!r} is not a time like 2026-11-30T12:00:00Z.") from None


def _list(objects: Objects, file: Recovery) -> int:
    from unstuck.blobs.moments import list_logs, windows
    from unstuck.blobs.restore import Broken, chain_of, list_backups
    from unstuck.core.time import iso_seconds

    found = list_backups(objects, file.cloud_key)
    broken = 0
    for item in found:
        if item.manifest is None:
            print(plain(f"FAULT  {item.prefix}: {item.fault}"))
            continue
        known = item.manifest
        taken = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(known.taken_at))
        print(
            plain(
                f"{known.backup_id}  {taken}  {known.datastore.type} {known.datastore.server_version}  "
                f"{known.size} bytes  instance {known.instance_name} ({known.instance_id})  "
                f"backup {known.backup_name}" + (f"  since {known.parent.id}" if known.parent else "")
            )
        )
        if item.fault:
            print(plain(f"FAULT  {known.backup_id}: {item.fault}"))
        elif known.parent is not None:
            try:
                chain_of(found, known.backup_id)
            except Broken as error:
                broken += 1
                print(plain(f"FAULT  {known.backup_id}: {error}"))
    for instance_id, logs in list_logs(objects, file.cloud_key, found).items():
        for each in windows(logs):
            ends = f"{iso_seconds(math.ceil(each.earliest))} to {iso_seconds(each.latest)}"
            print(plain(f"{instance_id}  any moment from {ends}"))
    bad = broken + sum(item.fault is not None for item in found)
    print(f"{counted(len(found), 'backup')} of cloud {file.cloud_id}, {bad} of them not whole.")
    return 1 if bad else 0


def _restore(objects: Objects, file: Recovery, backup_id: str, to: Path) -> int:
    from unstuck.blobs.restore import Broken, chain_of, list_backups

    try:
        chain = chain_of(list_backups(objects, file.cloud_key), backup_id)
    except Broken as error:
        raise CliError(f"Backup {backup_id} cannot be restored: {error}.") from None
    return _unpack(objects, file, f"Backup {backup_id}", chain, to, None)


def _restore_moment(objects: Objects, file: Recovery, instance_id: str, at: float, to: Path) -> int:
    from unstuck.blobs.moments import list_logs, plan
    from unstuck.blobs.restore import Broken, list_backups

    what = f"Instance {instance_id}"
    backups = list_backups(objects, file.cloud_key)
    logs = list_logs(objects, file.cloud_key, backups).get(instance_id)
    if logs is None:
        raise CliError(f"{what} cannot be restored: there is no log of it; a backup of it may be there.")
    try:
        found = plan(backups, logs, at)
    except Broken as error:
        raise CliError(f"{what} cannot be restored to that moment: {error}.") from None
    return _unpack(objects, file, what, list(found.chain), to, found)


def _unpack(
    objects: Objects, file: Recovery, what: str, chain: list[Manifest], to: Path, plan: Plan | None
) -> int:
    """``plan``: up to which moment, and by which log."""
    from unstuck.blobs.chunks import Damaged
    from unstuck.blobs.keys import BadKey
    from unstuck.blobs.moments import plain_piece
    from unstuck.blobs.restore import Lost, plain_pieces
    from unstuck.cli.dbunpack import Unfit, add_log, fault_of, finish, unpack
    from unstuck.core.archive.positions import lsn_of

    if (fault := fault_of(chain)) is not None:
        raise CliError(f"{what} cannot be restored: {fault}.")
    target = to.expanduser().absolute()
    if target.exists():
        raise CliError(f"{target} is there already: name a folder that is not.")
    target.parent.mkdir(parents=True, exist_ok=True)
    pieces = () if plan is None else plan.pieces
    size = sum(manifest.size for manifest in chain) + sum(kept.piece.size for kept in pieces)
    free = shutil.disk_usage(target.parent).free
    if free < size:
        raise CliError(f"{target.parent} has {free} bytes free, and there are {size}.")
    part = target.with_name(f".{target.name}.part-{os.getpid()}")
    part.mkdir()
    upto = None if plan is None or plan.ends else lsn_of(plan.point.position)
    try:
        for number, manifest in enumerate(chain):
            unpack(manifest, number, plain_pieces(objects, manifest, file.identity), part)
        for kept in pieces:
            add_log(part, kept.piece.name, plain_piece(objects, kept, file.identity))
        words = finish(chain, part, target, upto=upto, log=bool(pieces))
        os.sync()
        part.rename(target)
    except (Damaged, Lost, BadKey) as error:
        raise CliError(f"{what} cannot be restored, and nothing was left: {error}.") from None
    except Unfit as error:
        raise CliError(f"{what} is whole, but not the archive it says: {error}.") from None
    except OSError as error:
        why = f"{error.filename or target}: {error.strerror or error}"
        raise CliError(f"{what} was not restored, and nothing was left: {why}.") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    made = chain[-1].datastore
    print(plain(f"Restored {size} bytes of {made.type} into {target}."))
    for sentence in words:
        print(plain(sentence))
    return 0
