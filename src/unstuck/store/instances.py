"""What users and operators may do with an instance. One function is one transaction.

Each writes down what is wanted; the control loop gives it to host and guest at the right moment. Each returns
the host to notify, where one has to hear of it at once.
"""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from unstuck.core.errors import Conflict, Invalid
from unstuck.core.instance.control import LIMITS, PATIENCE
from unstuck.core.instance.data import TRASH, Former, Instance, Pending, PendingKind, System
from unstuck.core.instance.status import BUILD, fault_of, status
from unstuck.core.server.control import Outcome
from unstuck.core.server.data import Access, BootImage, Flavor, OperationKind, Power, Server, Spec
from unstuck.store import database_quotas, datastores, instance_backups, readable
from unstuck.store.configurations import check_fit, get_configuration
from unstuck.store.engine import Tx
from unstuck.store.instance_create import (
    AskedInstance,
    NewIds,
    access_of,
    check_memory,
    create_instance,
    flavor_for,
    images_for_version,
    images_of,
    note_operation,
    open_operation,
)
from unstuck.store.instance_rows import (
    Loaded,
    close_operation,
    hold,
    host_of,
    judge,
    load_instance,
    missing,
)
from unstuck.store.rows import bump_world, release_room, set_room
from unstuck.store.schema.compute import servers
from unstuck.store.schema.database import instances
from unstuck.store.server_actions import reset_state
from unstuck.store.server_create import copy_of
from unstuck.store.servers import Caller, change_intent, has_room

_spec: msgspec.json.Decoder[Spec | None] = msgspec.json.Decoder(Spec)


def write(tx: Tx, instance_id: str, **values: Any) -> None:
    """Change columns of an instance that the caller holds."""
    stamped = {**values, "updated_wall": tx.now.wall}
    tx.execute(sa.update(instances).where(instances.c.id == instance_id).values(stamped))


def spec_of(tx: Tx, server_id: str) -> Spec:
    """What the instance's server is made of; 409 where that cannot be read."""
    text = tx.execute(sa.select(servers.c.spec).where(servers.c.id == server_id)).scalar_one_or_none()
    spec = None if text is None else readable.read(_spec, text, None)
    if spec is None:
        raise Conflict("The record of its server cannot be read in the store; restore a backup of it.")
    return spec


def set_spec(tx: Tx, server_id: str, spec: Spec, **columns: Any) -> None:
    """Write what the server is made of, and columns that show it."""
    values = {**columns, "spec": msgspec.json.encode(spec).decode(), "updated_wall": tx.now.wall}
    tx.execute(sa.update(servers).where(servers.c.id == server_id).values(values))


def rename_instance(tx: Tx, instance_id: str, project_id: str | None, name: str, caller: Caller) -> None:
    """Another name, for people only; its server keeps the one that it was made with."""
    hold(tx, instance_id, project_id)
    write(tx, instance_id, name=name)
    note_operation(tx, instance_id, "rename", caller)


def protect_instance(
    tx: Tx, instance_id: str, project_id: str | None, caller: Caller, *, protected: bool
) -> None:
    """Protect it from being deleted, or lift that."""
    hold(tx, instance_id, project_id)
    write(tx, instance_id, protected=protected)
    note_operation(tx, instance_id, "protect" if protected else "unprotect", caller)


def change_access(
    tx: Tx, instance_id: str, project_id: str | None, caller: Caller, *,
    is_public: bool | None, cidrs: tuple[str, ...] | None,
) -> str | None:  # fmt: skip
    """Who may come in from now on; None leaves as it is. Takes effect without a restart."""
    loaded = hold(tx, instance_id, project_id)
    row = tx.execute(
        sa.select(instances.c.is_public, instances.c.allowed_cidrs, instances.c.port).where(
            instances.c.id == instance_id
        )
    ).one()
    public = row.is_public if is_public is None else is_public
    kept = msgspec.json.decode(row.allowed_cidrs, type=tuple[str, ...])
    named = kept if cidrs is None else cidrs
    spec = spec_of(tx, loaded.server_id)
    access = access_of(tx, spec.nics[0], row.port, is_public=public, cidrs=named)
    _set_access(tx, loaded, spec, access)
    write(tx, instance_id, is_public=public, allowed_cidrs=msgspec.json.encode(named).decode())
    note_operation(tx, instance_id, "access", caller)
    return _tell(tx, loaded)


def _set_access(tx: Tx, loaded: Loaded, spec: Spec, access: Access) -> None:
    if spec.access != access:
        set_spec(tx, loaded.server_id, msgspec.structs.replace(spec, access=access))


def _tell(tx: Tx, loaded: Loaded) -> str | None:
    """Bump its server in its host's world; :func:`hold` has taken the host's row."""
    host_id = host_of(tx, loaded.server_id)
    if host_id is not None:
        bump_world(tx, host_id, loaded.server_id)
    return host_id


def restart_instance(tx: Tx, instance_id: str, project_id: str | None, caller: Caller) -> str | None:
    """The datastore is to be started anew, its server too where that does not run as it should."""
    loaded = hold(tx, instance_id, project_id)
    instance = loaded.instance
    waiting = instance.pending
    if waiting is not None and waiting.kind is PendingKind.RESTART and waiting.applied is None:
        return None  # it is wanted already, and has not begun
    _refuse_unless_free(tx, instance, "restarted", in_error=True)
    return _pend(tx, loaded, _pending(tx, PendingKind.RESTART, caller), caller)


def resize_instance(
    tx: Tx, instance_id: str, project_id: str | None, flavor_id: str, caller: Caller
) -> str | None:
    """Another flavor: memory and CPUs. Room and quota are taken now, the guest changes when it may."""
    flavor = flavor_for(tx, flavor_id, caller)
    before = _row(tx, instance_id, project_id)
    database_quotas.grant(tx, before.project_id, ram=flavor.ram_mb - before.ram_mb)
    loaded = hold(tx, instance_id, project_id)
    _refuse_unless_free(tx, loaded.instance, "resized")
    if before.flavor_id == flavor_id:
        raise Invalid(f"flavorRef: the instance has flavor {flavor_id} already.")
    spec = spec_of(tx, loaded.server_id)
    check_memory(tx, flavor, spec.images[0].id)
    if loaded.row.configuration_id is not None:
        group = get_configuration(tx, loaded.row.configuration_id, None)
        check_fit(group.manager, group.texts(), flavor.ram_mb, instance_id)
    size = Flavor(flavor.vcpus, flavor.ram_mb, spec.flavor.disk_gb)
    _take_room(tx, loaded, spec.flavor, size, "flavorRef")
    shown = copy_of(msgspec.structs.replace(flavor, disk_gb=size.disk_gb))
    pending = msgspec.structs.replace(
        _pending(tx, PendingKind.RESIZE, caller),
        flavor=size, flavor_copy=msgspec.json.encode(shown).decode(), former=_former(before),
    )  # fmt: skip
    write(tx, instance_id, flavor_id=flavor_id, ram_mb=flavor.ram_mb)
    return _pend(tx, loaded, pending, caller)


def resize_volume(
    tx: Tx, instance_id: str, project_id: str | None, volume_gb: int, caller: Caller
) -> str | None:
    """A larger volume; a volume only ever grows."""
    before = _row(tx, instance_id, project_id)
    database_quotas.grant(tx, before.project_id, volumes=volume_gb - before.volume_gb)
    loaded = hold(tx, instance_id, project_id)
    _refuse_unless_free(tx, loaded.instance, "resized")
    if volume_gb <= before.volume_gb:
        raise Invalid(
            f"volume.size: {volume_gb} GiB is not larger than the {before.volume_gb} GiB that it has; a "
            "volume only grows. Restore a backup into an instance with a smaller one."
        )
    spec = spec_of(tx, loaded.server_id)
    size = msgspec.structs.replace(spec.flavor, disk_gb=volume_gb)
    _take_room(tx, loaded, spec.flavor, size, "volume.size")
    pending = msgspec.structs.replace(
        _pending(tx, PendingKind.RESIZE_VOLUME, caller), flavor=size, former=_former(before)
    )
    write(tx, instance_id, volume_gb=volume_gb)
    return _pend(tx, loaded, pending, caller)


def rebuild_instance(tx: Tx, instance_id: str, image_id: str | None, caller: Caller) -> str | None:
    """An operator gives it another system (None: its version's present image); the volume stays."""
    loaded = hold(tx, instance_id, None)
    _refuse_unless_free(tx, loaded.instance, "rebuilt", in_error=True)
    wanted = image_id or _image_of_version(tx, instance_id)
    images: tuple[BootImage, ...] = images_of(tx, wanted, "image_id")
    pending = msgspec.structs.replace(
        _pending(tx, PendingKind.REBUILD, caller), images=images, image_id=wanted
    )
    return _pend(tx, loaded, pending, caller)


def upgrade_instance(
    tx: Tx, instance_id: str, project_id: str | None, version: str, caller: Caller
) -> str | None:
    """Another version of its datastore (by id, name or number), within the same major version: its system is
    replaced, its volume stays. If that fails, the present version counts again."""
    loaded = hold(tx, instance_id, project_id)
    _refuse_unless_free(tx, loaded.instance, "upgraded")
    now = datastores.get_version(tx, _version_of(tx, instance_id), inactive=True)
    wanted = datastores.choose(tx, now.datastore.id, version)
    if wanted.version.id == now.version.id:
        raise Invalid(f"datastore_version: the instance has version {now.version.name} already.")
    if not datastores.same_line(now.version, wanted.version):
        raise Invalid(
            f"datastore_version: {wanted.version.version} is another major version than "
            f"{now.version.version}: its files are others. Make an instance of it, and bring the data over "
            "(unstuck db export, unstuck db import)."
        )
    images, image_id = images_for_version(tx, wanted.version)
    spec = spec_of(tx, loaded.server_id)
    before = tx.execute(
        sa.select(servers.c.image_id).where(servers.c.id == loaded.server_id)
    ).scalar_one_or_none()
    pending = msgspec.structs.replace(
        _pending(tx, PendingKind.UPGRADE, caller),
        system=System(wanted.version.id, image_id, images),
        before=System(now.version.id, before or "", spec.images),
    )
    return _pend(tx, loaded, pending, caller)


def _version_of(tx: Tx, instance_id: str) -> str:
    query = sa.select(instances.c.datastore_version_id).where(instances.c.id == instance_id)
    return str(tx.execute(query).scalar_one())


def _image_of_version(tx: Tx, instance_id: str) -> str:
    from unstuck.store.schema.database import datastore_versions

    found = tx.execute(
        sa.select(datastore_versions.c.image_id)
        .join(instances, instances.c.datastore_version_id == datastore_versions.c.id)
        .where(instances.c.id == instance_id)
    ).scalar_one()
    if found is None:
        raise Conflict("image_id: its datastore version has no image; name one.")
    return str(found)


def _row(tx: Tx, instance_id: str, project_id: str | None) -> Any:
    """Sizes and owner, before anything is locked."""
    row = tx.execute(
        sa.select(
            instances.c.project_id, instances.c.flavor_id, instances.c.ram_mb, instances.c.volume_gb,
            instances.c.removed, instances.c.deleted,
        ).where(instances.c.id == instance_id)
    ).first()  # fmt: skip
    if row is None or row.removed or (project_id is not None and row.project_id != project_id):
        raise missing(instance_id)
    return row


def _former(row: Any) -> Former:
    return Former(row.flavor_id, row.ram_mb, row.volume_gb)


def _pending(tx: Tx, kind: PendingKind, caller: Caller) -> Pending:
    now = tx.now.lease
    return Pending(
        kind=kind, since=now, patience=now + PATIENCE, deadline=now + PATIENCE + LIMITS[kind],
        request_id=caller.request_id, user_id=caller.user_id,
    )  # fmt: skip


def _refuse_unless_free(tx: Tx, instance: Instance, done: str, *, in_error: bool = False) -> None:
    """409 while it is built, or while another request is under way. A backup never causes a refusal."""
    if instance.pending is not None:
        since = tx.now.lease - instance.pending.since
        raise Conflict(
            f"Instance {instance.id} cannot be {done} now: a {instance.pending.kind.value} was asked for "
            f"{since:.0f} s ago and goes on; it ends within "
            f"{max(instance.pending.deadline - tx.now.lease, 0):.0f} s at the latest."
        )
    shown = status(instance, tx.now)
    if shown.status == BUILD:
        raise Conflict(f"Instance {instance.id} cannot be {done} now: it is still being built.")
    fault = fault_of(instance)
    if fault is not None and not in_error:
        raise Conflict(f"Instance {instance.id} cannot be {done} now, it is in ERROR: {fault.reason}.")


def _pend(tx: Tx, loaded: Loaded, pending: Pending, caller: Caller) -> str | None:
    instance_id = loaded.instance.id
    close_operation(tx, instance_id, Outcome("superseded", f"a {pending.kind.value} was asked for"))
    open_operation(tx, instance_id, pending.kind.value, caller, pending.deadline - tx.now.lease)
    write(
        tx, instance_id, pending=msgspec.json.encode(pending).decode(), settled=False, next_look=tx.now.lease
    )
    judge(tx, instance_id)
    return host_of(tx, loaded.server_id)


def _take_room(tx: Tx, loaded: Loaded, before: Flavor, after: Flavor, field: str) -> None:
    """The host keeps room for both until it is over; 409 where it has not so much."""
    host_id = host_of(tx, loaded.server_id)
    if host_id is None:
        raise Conflict(f"Instance {loaded.instance.id} has no host, so nothing can be changed about it.")
    both = Flavor(
        max(before.vcpus, after.vcpus), max(before.ram_mb, after.ram_mb), max(before.disk_gb, after.disk_gb)
    )
    if not has_room(tx, host_id, before, both):
        raise Conflict(
            f"{field}: the host of instance {loaded.instance.id} has no room for that now; ask for less, or "
            "restore a backup of it into a new instance of that size."
        )
    set_room(tx, loaded.server_id, both)


def delete_instance(
    tx: Tx, instance_id: str, project_id: str | None, caller: Caller, *,
    force: bool = False, trash_seconds: float = TRASH,
) -> str | None:  # fmt: skip
    """Delete always wins (law 6), unless its owner has protected it (409, saying how to lift that).

    Its volume is kept for ``trash_seconds``; not with ``force``, nor where no data was ever made. A second
    delete changes nothing, but ``force`` ends its time in the trash.
    """
    loaded = hold(tx, instance_id, project_id, deleted=True)
    instance = loaded.instance
    if instance.deleted and not force:
        return None
    if instance.protected:
        raise Conflict(
            f"Instance {instance_id} is protected from being deleted: lift that first "
            '(unstuck db protect --off, or PUT its {"instance": {"protected": false}}), then delete it.'
        )
    server = instance.server
    kept = server is not None and server.place is not None and server.disk_recorded
    until = tx.now.wall + trash_seconds if kept and not force and trash_seconds > 0 else None
    if not instance.deleted:
        _give_up(tx, loaded)
    write(
        tx, instance_id, deleted=True, trash_until_wall=until, settled=False, next_look=tx.now.lease,
        deleted_wall=tx.now.wall if not instance.deleted else sa.literal_column("deleted_wall"),
    )  # fmt: skip
    note_operation(tx, instance_id, "delete", caller)
    judge(tx, instance_id)
    return _tell(tx, loaded)


def _give_up(tx: Tx, loaded: Loaded) -> None:
    """Everything that goes on for it ends now."""
    instance = loaded.instance
    close_operation(tx, instance.id, Outcome("superseded", "the instance was deleted"))
    write(tx, instance.id, pending=None, restores=None)
    if instance.pending is not None:
        release_room(tx, loaded.server_id)
    if instance.restores is not None:
        instance_backups.look_at(tx, instance.restores)
    instance_backups.instance_deleted(tx, instance.id)


def undelete_instance(tx: Tx, instance_id: str, project_id: str | None, caller: Caller) -> str | None:
    """Bring it back from the trash, with all of its data; quota and room are needed as for a new one."""
    before = _row(tx, instance_id, project_id)
    if not before.deleted:
        raise Conflict(f"Instance {instance_id} is not deleted.")
    database_quotas.grant(tx, before.project_id, instances=1, volumes=before.volume_gb, ram=before.ram_mb)
    loaded = hold(tx, instance_id, project_id, deleted=True)
    instance, server = loaded.instance, loaded.instance.server
    until = instance.trash_until_wall
    gone = server is None or server.deleted or server.removed or server.place is None
    if not instance.deleted or until is None or tx.now.wall >= until or gone:
        raise Conflict(f"Instance {instance_id} is not in the trash any more: its volume is removed.")
    assert server is not None
    write(tx, instance_id, deleted=False, deleted_wall=None, trash_until_wall=None)
    started = server.power is Power.OFF
    if started:
        _start_again(tx, loaded, server, caller)
    pending = msgspec.structs.replace(
        _pending(tx, PendingKind.RESTART, caller),
        applied=tx.now.lease, guest=instance.guest if started else -1,
    )  # fmt: skip
    return _pend(tx, loaded, pending, caller)


def _start_again(tx: Tx, loaded: Loaded, server: Server, caller: Caller) -> None:
    size = spec_of(tx, loaded.server_id).flavor
    assert server.place is not None
    shelved = Flavor(0, 0, size.disk_gb)
    if loaded.instance.room_mb == 0 and not has_room(tx, server.place.host_id, shelved, size):
        raise Conflict(
            f"Instance {loaded.instance.id} cannot come back now: its host has no room for it. It stays in "
            "the trash until its time is over."
        )
    set_room(tx, loaded.server_id, size)
    change_intent(tx, server, OperationKind.START, caller, power=Power.ON, edge=server.intent + 1, soft=False)


def reset_status(tx: Tx, instance_id: str, project_id: str | None, caller: Caller) -> str | None:
    """An operator's mark that forces a look: budgets begin anew, a recorded failure is judged again.

    No status is written and nothing is cancelled: a backup that runs goes on.
    """
    loaded = hold(tx, instance_id, project_id, deleted=True)
    server = loaded.instance.server
    if server is not None and not server.removed:
        reset_state(tx, loaded.server_id, "active", msgspec.structs.replace(caller, admin=True))
    write(tx, instance_id, failure=None, marked_wall=tx.now.wall, settled=False, next_look=tx.now.lease)
    note_operation(tx, instance_id, "reset", caller)
    judge(tx, instance_id)
    return host_of(tx, loaded.server_id)


__all__ = [
    "AskedInstance",
    "NewIds",
    "change_access",
    "create_instance",
    "delete_instance",
    "load_instance",
    "protect_instance",
    "rebuild_instance",
    "rename_instance",
    "reset_status",
    "resize_instance",
    "resize_volume",
    "restart_instance",
    "undelete_instance",
    "upgrade_instance",
]
