"""Checks of a recipe's file systems: FSx for Lustre, its links to S3, and what is left when the
cluster is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from launch.core.findings import Finding, error, note, warning
from launch.platforms.fsx.lustre import MONTH_H, PRICES
from launch.platforms.parallelcluster.recipe import Keys, all_nodes, entries, lustre, mapping

OLD_LINKS = ("ImportPath", "ExportPath", "ImportedFileChunkSize", "AutoImportPolicy")


def storage(recipe: Keys) -> list[Finding]:
    """Everything about shared file systems."""
    findings = [*_shared(recipe)]
    for place, _, settings in lustre(recipe):
        if settings.get("FileSystemId"):
            findings += _reachable(recipe, place)
            continue
        findings += [*_scratch(place, settings), *_kept(place, settings), *_links(place, settings)]
    return findings


def standing_cost(recipe: Keys) -> tuple[float, list[str]]:
    """Dollars an hour of the file systems that the recipe makes (list prices of us-east-1), and
    words for each.
    """
    dollars, words = 0.0, []
    for place, _, settings in lustre(recipe):
        price = _price(settings)
        gb = settings.get("StorageCapacity")
        if settings.get("FileSystemId") or not isinstance(gb, int):
            continue
        if price is None:
            kind = settings.get("DeploymentType")
            words.append(
                f"{place}: {gb} GB of {kind}, whose price segtrain does not know, also while no "
                "job runs"
            )
            continue
        dollars += gb * price / MONTH_H
        words.append(f"{place}: {gb} GB, ${gb * price:,.0f} a month, also while no job runs")
    return dollars, words


def _price(settings: Keys) -> float | None:
    if settings.get("FileSystemId"):
        return None
    if settings.get("DeploymentType") == "PERSISTENT_2":
        return PRICES.get(settings.get("PerUnitStorageThroughput") or -1)
    return PRICES[0] if settings.get("DeploymentType", "SCRATCH_2") == "SCRATCH_2" else None


def _shared(recipe: Keys) -> Iterator[Finding]:
    shares = entries(recipe, "SharedStorage")
    if not shares:
        yield error(
            "share-none",
            "the recipe has no SharedStorage: nodes see nothing but /home of the head node, "
            "which is slow and small",
            "FsxLustre at /workspace, as in configs/clusters/research.yaml",
        )
    kinds = {share.get("StorageType") for share in shares}
    if shares and not kinds & {"FsxLustre", "FsxOntap", "FsxOpenZfs", "Efs", "FileCache"}:
        yield warning(
            "share-ebs",
            f"SharedStorage: {', '.join(sorted(map(str, kinds)))} is shared by the head node over "
            "NFS: all nodes read through its one network card",
            "FsxLustre for data and runs",
        )


def _scratch(place: str, settings: Keys) -> Iterator[Finding]:
    kind = settings.get("DeploymentType", "SCRATCH_2")
    if str(kind).startswith("SCRATCH"):
        yield warning(
            "fsx-scratch",
            f"{place}: {kind} keeps one copy: a server that fails takes checkpoints with it",
            "DeploymentType: PERSISTENT_2 for a file system that holds runs",
        )


def _reachable(recipe: Keys, place: str) -> Iterator[Finding]:
    """A file system that is there already lets in only nodes of its security group."""
    without = [
        name
        for name, node in all_nodes(recipe)
        if not {"AdditionalSecurityGroups", "SecurityGroups"} & set(mapping(node, "Networking"))
    ]
    if without:
        yield warning(
            "fsx-group",
            f"{place} is there already, and {', '.join(without)} is in no security group of "
            "it: the mount would hang",
            "Networking: AdditionalSecurityGroups: [sg-...], the output SecurityGroup of "
            "workspace.cfn.yaml",
        )


def _kept(place: str, settings: Keys) -> Iterator[Finding]:
    if settings.get("DeletionPolicy", "Delete") == "Delete":
        yield warning(
            "fsx-deleted",
            f"{place}: DeletionPolicy {settings.get('DeletionPolicy') or 'Delete (the default)'}: "
            "`pcluster delete-cluster` deletes all runs on it",
            "DeletionPolicy: Retain, and delete the file system when its runs are archived",
        )


def _links(place: str, settings: Keys) -> Iterator[Finding]:
    links = entries(settings, "DataRepositoryAssociations")
    old = [key for key in OLD_LINKS if key in settings]
    kind = settings.get("DeploymentType", "SCRATCH_2")
    if old and (links or kind == "PERSISTENT_2"):
        beside = "beside DataRepositoryAssociations" if links else "of a PERSISTENT_2 file system"
        yield error(
            "fsx-old-link",
            f"{place}: {', '.join(old)} {beside}: FSx refuses the pair, after the rest of the "
            "cluster has been made",
            "entries of DataRepositoryAssociations with AutoImportPolicy and "
            "AutoExportPolicy alone",
        )
    if not links and not old:
        yield warning(
            "fsx-unlinked",
            f"{place} has no link to S3: data are copied by hand, and no archive exists",
            "DataRepositoryAssociations, as in configs/clusters/research.yaml",
        )
    for one in links:
        where = f"{place}, association {one.get('Name')}"
        if not any(
            one.get(key)
            for key in ("AutoImportPolicy", "AutoExportPolicy", "BatchImportMetaDataOnCreate")
        ):
            yield warning(
                "fsx-link-idle",
                f"{where} neither imports nor exports: the folder stays empty, and nothing of "
                "it appears in S3",
                "BatchImportMetaDataOnCreate: true and AutoImportPolicy for data, "
                "AutoExportPolicy for runs",
            )
        elif not one.get("BatchImportMetaDataOnCreate"):
            yield warning(
                "fsx-link-empty",
                f"{where}: a new file system does not show what S3 already has, such as the runs "
                "of a deleted cluster",
                "BatchImportMetaDataOnCreate: true",
            )
    yield from _overlaps(place, links)
    if links and not any(one.get("AutoExportPolicy") for one in links):
        yield note(
            "fsx-unexported",
            f"{place}: no association exports: runs reach S3 only by `segtrain launch "
            "lustre export`",
            "AutoExportPolicy: [NEW, CHANGED] for the folder of the runs",
        )


def _overlaps(place: str, links: list[Keys]) -> Iterator[Finding]:
    """FSx refuses associations inside one another, on either side."""
    for key in ("FileSystemPath", "DataRepositoryPath"):
        paths = [str(one.get(key, "")).replace("s3:/", "").rstrip("/") or "/" for one in links]
        for number, inner in enumerate(paths):
            outers = [one for other, one in enumerate(paths) if other != number]
            above = {str(parent) for parent in PurePosixPath(inner).parents} | {inner}
            found = [outer for outer in outers if outer in above]
            if found:
                yield error(
                    "fsx-link-overlap",
                    f"{place}: {key} {links[number].get(key)} lies in that of another association",
                    "folders and prefixes beside each other",
                )
                break
