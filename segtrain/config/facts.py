"""Facts about settings that other packages ask for (``run.keys_with``). They stand beside each
setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field
from pydantic.fields import FieldInfo

# untrained: changes only where and how a run executes. It is not part of the hash, and may change
# when a run resumes. per_host: may differ between hosts. All others decide what is trained, or the
# order of the collectives. storage: where and how samples are stored. A run may change from files
# to shards of the same samples. listing: decides which files a split has.
# eval: `segtrain eval` reads it. predict: `segtrain predict` takes it.
# speed_neutral: does not change the speed of a run: a name, a length, or what only affects what the
# model learns. plan_neutral: does not change the time of a step in a plan, or is compared there in
# another form.
Fact = Literal[
    "untrained",
    "per_host",
    "storage",
    "listing",
    "eval",
    "predict",
    "speed_neutral",
    "plan_neutral",
]


def setting(facts: Sequence[Fact], *default: Any, **field: Any) -> Any:
    """A ``pydantic.Field`` with facts. Those of a section hold for all of its settings."""
    return Field(*default, json_schema_extra={"facts": list(facts)}, **field)


def has(field: FieldInfo, fact: Fact) -> bool:
    extra = field.json_schema_extra
    return isinstance(extra, dict) and fact in extra["facts"]  # type: ignore[operator]
