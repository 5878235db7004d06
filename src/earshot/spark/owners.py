"""Who owns a checkpoint and a sink: one pipeline each, for good.

A pipeline gets a name when it is first started, which its checkpoint keeps. What it writes to is
marked with that name, so another pipeline, or one whose checkpoint was removed, cannot write its
own batches over those that are there.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import uuid4

from earshot.errors import InUse
from earshot.spark.folders import Folder
from earshot.spark.store import IndexStore

PIPELINE = "pipeline.json"
"""File in a checkpoint that names its pipeline and the index."""
MARK = "_owner"
"""File in a sink that names its owner; Spark and Arrow do not read names that begin with ``_``."""


class Owner(NamedTuple):
    """A pipeline, as what it owns names it."""

    pipeline: str  # its name, over all its starts
    checkpoint: str  # where it remembers where it is
    purpose: str = "updates"  # what a sink of it is for
    form: str = ""  # shape and format of what a sink has, as far as known


def claim_checkpoint(checkpoint: Folder, store: IndexStore) -> Owner:
    """Return the owner of a checkpoint: the pipeline that it remembers, or a new one.

    Raises:
        InUse: It belongs to something else, or to a pipeline over another index.
    """
    folder, identity = checkpoint / "earshot", store.identity
    try:
        known = folder.read_json(PIPELINE)
    except FileNotFoundError:
        foreign = [name for name in checkpoint.names() if name != "earshot"]
        if foreign:
            raise InUse(
                f"checkpoint {checkpoint.path} holds {foreign[0]}, which is not of a pipeline of "
                f"Earshot's; choose a directory of its own"
            ) from None
        name = uuid4().hex
        facts = {"name": name, "index": store.folder.uri, "identity": identity}
        folder.create_json(PIPELINE, facts)
        return Owner(name, checkpoint.path)
    if known.get("identity") != identity:
        raise InUse(
            f"checkpoint {checkpoint.path} belongs to a pipeline over the index "
            f"{Folder(known['index']).path}, and {store.folder.path} is another one, or was built "
            f"from nothing since; give this pipeline that index, or a new checkpoint and a new "
            f"sink"
        )
    return Owner(known["name"], checkpoint.path)


def claim_sink(folder: Folder, owner: Owner) -> None:
    """Mark a directory as the sink of a pipeline.

    Raises:
        InUse: It belongs to another pipeline, or holds what nobody has claimed.
    """
    try:
        known = Owner(**folder.read_json(MARK))
    except FileNotFoundError:
        there = [name for name in folder.names() if not name.startswith("_")]
        if there:
            raise InUse(
                f"sink {folder.path} holds {there[0]} already, and no pipeline owns it; choose an "
                f"empty directory, or move away what is there"
            ) from None
        try:
            folder.create_json(MARK, owner._asdict())
        except FileExistsError:  # another one was faster
            claim_sink(folder, owner)
        return
    if known.pipeline != owner.pipeline and known.checkpoint == owner.checkpoint:
        raise InUse(
            f"sink {folder.path} belongs to a pipeline whose checkpoint was in "
            f"{owner.checkpoint} and was removed, so this one would begin anew and replace its "
            f"batches; bring that checkpoint back, or choose a new checkpoint and an empty "
            f"directory for the sink"
        )
    if known.pipeline != owner.pipeline:
        raise InUse(
            f"sink {folder.path} belongs to the pipeline with checkpoint {known.checkpoint}, whose "
            f"batches this one (checkpoint {owner.checkpoint}) would replace; go on with that "
            f"checkpoint, or choose an empty directory for the sink"
        )
    if known.purpose != owner.purpose:
        raise InUse(
            f"sink {folder.path} is for {known.purpose} of this pipeline already; choose another "
            f"directory for its {owner.purpose}"
        )
    if known.form and owner.form and known.form != owner.form:
        raise InUse(
            f"sink {folder.path} has {known.form}, and {owner.form} beside them could not be read "
            f"together; say the same as before, or choose an empty directory for the sink"
        )
