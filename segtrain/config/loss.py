"""The settings of the loss: its terms, each with the settings of its own name and no others, and what all share."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

from pydantic import Field, field_validator, model_validator

from segtrain.config.section import Section


class _Term(Section):
    name: str = Field("", description="which loss")
    weight: float = Field(1.0, gt=0, description="its factor in the sum")


class CrossEntropyTerm(_Term):
    """Cross-entropy."""

    name: Literal["ce"] = Field("ce", description="which loss")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="share of the target that goes to the other classes")


class OHEMTerm(_Term):
    """Cross-entropy of the hard pixels alone."""

    name: Literal["ohem"] = Field("ohem", description="which loss")
    min_kept: float = Field(0.25, gt=0, le=1, description="least share of valid pixels kept")
    threshold: float = Field(0.7, gt=0, le=1, description="pixels below this probability are always kept")


class FocalTerm(_Term):
    """Cross-entropy that counts a pixel less the better it is known."""

    name: Literal["focal"] = Field("focal", description="which loss")
    gamma: float = Field(2.0, ge=0, description="how much less; 0: cross-entropy")


class DiceTerm(_Term):
    """Dice, the mean of the classes present."""

    name: Literal["dice"] = Field("dice", description="which loss")


class JaccardTerm(_Term):
    """Jaccard (IoU), the mean of the classes present."""

    name: Literal["jaccard"] = Field("jaccard", description="which loss")


class LovaszTerm(_Term):
    """Lovasz-softmax."""

    name: Literal["lovasz"] = Field("lovasz", description="which loss")


class TverskyTerm(_Term):
    """Tversky: Dice with a weight of its own for each kind of error."""

    name: Literal["tversky"] = Field("tversky", description="which loss")
    alpha: float = Field(0.5, ge=0, description="weight of false positives")
    beta: float = Field(0.5, ge=0, description="weight of false negatives")

    @model_validator(mode="after")
    def _counts_errors(self) -> TverskyTerm:
        if not self.alpha and not self.beta:
            raise ValueError(
                "a tversky term with alpha=0 and beta=0 counts no error and is always 0: set one of them above 0"
            )
        return self


LossTerm = Annotated[
    Union[CrossEntropyTerm, OHEMTerm, FocalTerm, DiceTerm, JaccardTerm, LovaszTerm, TverskyTerm],
    Field(discriminator="name"),
]


class Loss(Section):
    """A weighted sum of terms over the valid pixels of the global batch."""

    terms: tuple[LossTerm, ...] = Field((CrossEntropyTerm(),), min_length=1, description="what is added up; see below")
    class_weights: Union[Literal["none", "auto"], tuple[float, ...]] = Field(
        "none", description="'auto': from the training masks; or one number a class"
    )
    class_weight_power: float = Field(0.5, ge=0, le=1, description="auto: (median share / share) ** power")
    aux_weight: float = Field(0.4, ge=0, description="weight of auxiliary heads, where the model has them")
    stride: int = Field(
        1, ge=1, le=8, description="count every n-th pixel in each direction, from a corner drawn for each step; 1: all"
    )
    full_logits: bool = Field(False, description="hold full-size logits of the whole batch (the plain way)")

    @field_validator("terms", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        """``ce`` and ``[ce, dice]`` are short for terms of weight 1; a term without a name is ``ce``."""
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, (list, tuple)):
            return value
        terms = [{"name": item} if isinstance(item, str) else item for item in value]
        return [{"name": "ce", **item} if isinstance(item, dict) else item for item in terms]

    @field_validator("class_weights")
    @classmethod
    def _usable(cls, value: Any) -> Any:
        if isinstance(value, tuple) and (min(value, default=0) < 0 or not any(value)):
            raise ValueError("each class weight must be at least 0, and one above 0")
        return value
