"""pixy/backup/upkeep.py: damage is found, and a removal takes no more than it may."""

from pathlib import Path

import pytest

from pixy.backup import Manifest, find_backup, find_backups, open_target, plan_pruning, prune, verify_backup
from pixy.backup.object_names import manifest_path
from pixy.backup.target import Target, put
from pixy.errors import CorruptData, NotFound
from tests.backup.test_create import back_up, filled


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return open_target(str(tmp_path / "target"))


def three(target: Target) -> list[Manifest]:
    """Three backups, each with more than the one before."""
    source = filled(4)
    manifests = []
    for number in range(3):
        manifests.append(back_up(source, target, time_ms=number)[0])
        source.append(0, b"more")
    return manifests


def test_the_newest_backup_is_the_default(target: Target) -> None:
    with pytest.raises(NotFound, match="has no backup"):
        find_backup(target, "")
    *_, last = manifests = three(target)
    assert find_backup(target, "") == last
    assert find_backup(target, manifests[0].id) == manifests[0]
    with pytest.raises(NotFound):
        find_backup(target, "20200101T000000.000Z")
    with pytest.raises(NotFound, match="is no id of a backup"):
        find_backup(target, "../x")


def test_every_object_that_is_missing_or_damaged_is_named(target: Target) -> None:
    last = three(target)[-1]
    for path in last.paths():
        data = target.get(path)
        for damaged in (data[:-1] + bytes([data[-1] ^ 1]), data[:-1], None):
            target.remove(path)
            if damaged is not None:
                put(target, path, [damaged])
            found = list(verify_backup(target, last))
            assert found
            assert path in found[0]
        put(target, path, [data])
    assert list(verify_backup(target, last)) == []


def test_half_a_manifest_is_no_backup(target: Target) -> None:
    first, second, third = three(target)
    path = manifest_path(second.id)
    put(target, path, [target.get(path)[:-10]])
    found = find_backups(target)
    assert [each.id for each in found.backups] == [first.id, third.id]
    assert list(found.damaged) == [second.id]
    with pytest.raises(CorruptData, match="is damaged, so nobody knows"):
        plan_pruning(target, [first.id], unfinished=False)
    prune(target, plan_pruning(target, [second.id], unfinished=False), unfinished=False)
    assert not find_backups(target).damaged


def test_objects_stay_that_another_backup_has(target: Target) -> None:
    first, second, third = three(target)
    plan = plan_pruning(target, [first.id, second.id], unfinished=False)
    assert {*plan.objects} == {*first.paths(), *second.paths()} - {*third.paths()}
    prune(target, plan, unfinished=False)
    assert find_backups(target).backups == (third,)
    assert list(verify_backup(target, third)) == []
    prune(target, plan_pruning(target, [third.id], unfinished=False), unfinished=False)
    assert target.sizes("") == {}


def test_what_no_backup_has_goes_on_demand(target: Target) -> None:
    (last,) = three(target)[-1:]
    put(target, "data/x/y/0/left", [b"left"])
    assert plan_pruning(target, [], unfinished=False).objects == ()
    plan = plan_pruning(target, [], unfinished=True)
    assert plan.objects == ("data/x/y/0/left",)
    prune(target, plan, unfinished=True)
    assert list(verify_backup(target, last)) == []


def test_an_unknown_backup_is_named(target: Target) -> None:
    with pytest.raises(NotFound, match="has no backup"):
        plan_pruning(target, ["20200101T000000.000Z"], unfinished=False)
